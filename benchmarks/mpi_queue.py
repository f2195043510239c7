"""The Stream port between two ranks, run by `mpiexec -n 2`: one JSON object, as `queue_speed.py` prints it, by kind of window."""

from __future__ import annotations

import json
import sys

import queue_speed

from shoal.runtimes.mpi import Mpi, MpiConfig
from shoal.runtimes.ranks import leave


def main(quick: bool) -> None:
    Mpi.join()  # the second rank serves from here on
    shared, rma = (queue_speed.main(quick, Mpi(MpiConfig(windows=windows))) for windows in ("shared", "rma"))
    found = {
        f"{name}, {case}": row
        for name, rows in (("shared window", shared), ("one-sided", rma))
        for case, row in rows.items()
    }
    print(json.dumps(found), flush=True)
    leave(0)


if __name__ == "__main__":
    main("--quick" in sys.argv)
