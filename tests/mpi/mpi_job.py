"""`mpiexec -n N ...` as a user starts it, watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
SOURCE = HERE.parents[1] / "src"
MARK = "SHOAL_TEST_JOB"  # in the environment of every rank: mpiexec puts them into sessions of their own
LIVE: list[Job] = []
_SIZES = {"--envs": "2", "--algo.unroll": "16", "--algo.batch-size": "32", "--net.hidden": "8", "--eval-episodes": "0"}
TINY = [word for pair in _SIZES.items() for word in pair] + ["--no-report"]


class Job:
    """Its output goes to files of `folder`."""

    def __init__(self, folder: Path, ranks: int, *command: str) -> None:
        self.out, self.err = (folder / f"{time.monotonic_ns()}.{end}" for end in ("out", "err"))
        path = os.pathsep.join(map(str, [SOURCE, HERE.parent / "contracts", HERE]))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [str(MPIEXEC), "-n", str(ranks), sys.executable, *command],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, MARK: self.out.stem},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

        LIVE.append(self)

    def kill(self) -> None:
        """Whatever is left of it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()

    @classmethod
    def train(cls, folder: Path, ranks: int, *words: str) -> Job:
        return cls(folder, ranks, "-m", "shoal", "train", *words)

    def end(self, seconds: float = 240) -> int:
        """The exit code; a job that does not end is killed, and the test fails."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the job did not end in {seconds} s:\n{self.err.read_text()[-2000:]}") from None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects on standard output."""
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.startswith("{")]

    def ranks(self) -> dict[int, int]:
        """{rank: process id} of those that live."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = dict(v.split("=", 1) for v in (folder / "environ").read_text().split("\0") if "=" in v)
            except OSError:  # it ended meanwhile, or is not ours to look at
                continue
            if variables.get(MARK) == self.out.stem and "PMI_RANK" in variables:
                found[int(variables["PMI_RANK"])] = int(folder.name)
        return found


def wait_until(true: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)
