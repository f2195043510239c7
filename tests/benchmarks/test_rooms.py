"""Commands that benchmarks run: none outlives the benchmark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SLEEP = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
RUN = f"""
import sys
sys.path.insert(0, sys.argv[1])
import rooms
rooms.run_json([sys.executable, "-c", {SLEEP!r}, sys.argv[2]], 60)
"""


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_ends_with_the_benchmark(number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    benchmark = subprocess.Popen(
        [sys.executable, "-c", RUN, str(BENCHMARKS), str(told)], stderr=subprocess.DEVNULL, process_group=0
    )
    until = time.monotonic() + 60
    while not (told.exists() and told.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    command = int(told.read_text())
    try:
        benchmark.send_signal(number)
        assert benchmark.wait(60) != 0
        assert not alive(command)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(command, signal.SIGKILL)
