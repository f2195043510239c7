"""A child on a device of 512 MB and half a core joins, exchanges and ends well, in less than 350 MB."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from families import A2C, CHILD, parent_of
from small import Small

from shoal.federation.settings import FederationConfig

SOURCE = Path(__file__).parents[2] / "src"
MEGABYTES, CORES, MOST = 512, 0.5, 350
PATIENCE = 240.0


def test_a_child_on_a_small_device(tmp_path: Path) -> None:
    """A whole `shoal join` with one actor, as it runs on a Raspberry Pi of 512 MB beside the system."""
    if os.geteuid() != 0:
        pytest.skip(f"control groups need root; this is user {os.geteuid()}")
    try:
        device = Small(megabytes=MEGABYTES, cores=CORES).__enter__()
    except OSError as error:
        pytest.skip(f"no control group with a limit of memory and of the processor could be made: {error}")
    federation = FederationConfig(every_updates=1, eval_every=0, updates=20)
    with device, parent_of(tmp_path / "parent", algo=A2C, federation=federation) as parent:
        own = [f"--{name.replace('_', '-')}={value}" for name, value in CHILD.items()]
        join = ["join", parent.url, "--token-file", str(parent.token_file), "--name", "pi", "--quiet", *own]
        words = device.words(tmp_path / "peak", *join, "--out", str(tmp_path / "child"))
        with (tmp_path / "said").open("wb") as said:
            child = subprocess.Popen(
                words,
                env={**os.environ, "PYTHONPATH": str(SOURCE), "XLA_FLAGS": ""},
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
    told = f"{device.how}: {(tmp_path / 'said').read_text()}"
    assert code == 0 and killed == 0, told
    assert summary["updates"] == 20 and summary["children"] == 1 and summary["rejected"] == 0, told
    assert int((tmp_path / "peak").read_text()) / 1024 < MOST, told
