"""A child on a device of 512 MB and half a core joins, exchanges and ends well, in less than 350 MB."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from families import A2C, CHILD, parent_of
from small import Small

from shoal.federation.settings import FederationConfig

SOURCE = Path(__file__).parents[2] / "src"
MEGABYTES, CORES, MOST = 512, 0.5, 350
PATIENCE = 240.0


def test_a_child_on_a_small_device(tmp_path: Path) -> None:
    """A whole `shoal join` with one actor, as it runs on a Raspberry Pi of 512 MB beside the system.

    The first start compiles, which takes more memory, and must survive; from the second on it stays below the limit. Where no
    control group can be made, which needs root, the peak of the first start shows whether it would have survived.
    """
    with Small(megabytes=MEGABYTES, cores=CORES) as device:
        peaks = [_peak(device, tmp_path / start, tmp_path / "cache") for start in ("first", "second")]
        assert device.limited or peaks[0] < MEGABYTES, (device.how, peaks)
    assert peaks[1] < MOST, (device.how, peaks)


def _peak(device: Small, folder: Path, cache: Path) -> float:
    """The peak memory of one child in MB, after a check that it trained and ended well."""
    folder.mkdir()
    federation = FederationConfig(every_updates=1, eval_every=0, updates=20)
    with parent_of(folder / "parent", algo=A2C, federation=federation) as parent:
        own = [f"--{name.replace('_', '-')}={value}" for name, value in CHILD.items()]
        join = ["join", parent.url, "--token-file", str(parent.token_file), "--name", "pi", "--quiet", *own]
        words = device.words(folder / "peak", *join, "--out", str(folder / "child"))
        with (folder / "said").open("wb") as said:
            child = subprocess.Popen(
                words,
                env={**os.environ, "PYTHONPATH": str(SOURCE), "XLA_FLAGS": "", "SHOAL_CACHE": str(cache)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        parent._over_outside = lambda: child.poll() is not None
        try:
            summary = parent.run()
            code = child.wait(PATIENCE)
        finally:
            child.kill()
            child.wait()
        killed = device.killed
    told = f"{device.how}: {(folder / 'said').read_text()}"
    assert code == 0 and killed == 0, told
    assert summary["updates"] == 20 and summary["children"] == 1 and summary["rejected"] == 0, told
    return int((folder / "peak").read_text()) / 1024
