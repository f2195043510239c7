"""The MPI launcher's environment variables, read before any heavy import."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

# Hydra (MPICH, Intel MPI) and Slurm's own PMI, Open MPI, MVAPICH; PMIx gives only the rank.
_NAMES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
)


class Launched(NamedTuple):
    """This process's rank among those that were started together."""

    rank: int
    size: int


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Rank and number of ranks; None for a process that no MPI launcher started."""
    words = os.environ if environment is None else environment
    for rank, size in _NAMES:
        if words.get(rank, "").isdigit() and words.get(size, "").isdigit():
            return Launched(int(words[rank]), int(words[size]))
    return None


def follows() -> bool:
    """Whether this is a rank other than 0, which prints nothing and writes no files."""
    found = launched()
    return found is not None and found.rank > 0
