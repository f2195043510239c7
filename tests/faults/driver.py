"""Runs of `shoal train` as a user starts them: real processes, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
TINY = [
    "--actors",
    "2",
    "--envs",
    "2",
    "--algo.unroll",
    "16",
    "--algo.batch-size",
    "32",
    "--net.hidden",
    "8",
    "--checkpoint-every",
    "0.2",
]
STEPS_A_UPDATE = 2 * 2 * 16
PATIENCE = 240  # seconds for what is certain to come, on however busy a machine
START = 1.4  # seconds until an idle machine has imported everything
LONG = "100000000"  # steps that no test waits for
ENV = "faulty_env:Faulty"


class Train:
    """A `shoal train` in a session of its own, with its output in files of `folder`."""

    def __init__(self, folder: Path, *words: str, env: str = ENV, eval_episodes: int = 0, **variables: Any) -> None:
        self.folder, self.run = folder, folder / "run"
        self._error = folder / f"stderr-{time.monotonic_ns()}"
        self._output = self._error.with_suffix(".out")
        self._broken = folder / "broken"
        self._broken.mkdir(exist_ok=True)
        given = {word for word in words if word.startswith("--")}
        command = [sys.executable, "-m", "shoal", "train", "--no-report"]
        if "--resume" not in given:
            defaults = [TINY[i : i + 2] for i in range(0, len(TINY), 2)]
            command += [env, "--out", str(self.run), "--eval-episodes", str(eval_episodes)]
            command += [word for pair in defaults if pair[0] not in given for word in pair]
        if "--restarts" not in given:  # the process that is started is the one that learns
            command += ["--restarts", "0"]
        path = os.pathsep.join([str(SOURCE), str(HERE)])
        variables = {name.upper(): str(value) for name, value in variables.items()}
        with self._output.open("wb") as output, self._error.open("wb") as error:
            self.process = subprocess.Popen(
                [*command, *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, "FAULT_FOLDER": str(self._broken), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                start_new_session=True,
            )
        self._began = time.time()
        self._tree: set[int] = {self.process.pid}

    @property
    def stderr(self) -> str:
        return self._error.read_text()

    @property
    def stdout(self) -> str:
        return self._output.read_text()

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return parsed

    @property
    def slowness(self) -> float:
        """How busy the machine is: 1, or by what the run's own start took longer than on an idle one."""
        config = self.run / "config.json"
        until = config.stat().st_mtime if config.exists() else time.time()
        return max(1.0, (until - self._began) / START)

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait for the exit code."""
        return self.process.wait(seconds)

    def until(self, holds: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Wait until `holds()` is true, while the run lives."""
        limit = time.monotonic() + seconds
        while not (found := holds()):
            code = self.process.poll()
            assert code is None, f"the run ended with {code}:\n{self.stderr}"
            assert time.monotonic() < limit, f"not within {seconds} s:\n{self.stderr}"
            time.sleep(0.02)
        return found

    def training(self, steps: int = 1) -> None:
        """Wait until it has learnt from so many steps."""
        self.until(lambda: self.steps() >= steps)

    def steps(self) -> int:
        rows = self.metrics()
        return max((row["step"] for row in rows), default=0)

    def metrics(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def faults(self) -> str:
        path = self.run / "faults.log"
        return path.read_text() if path.exists() else ""

    def broke_at(self) -> list[float]:
        """When an environment broke, in seconds since 1970."""
        return sorted(file.stat().st_mtime for file in self._broken.glob("broke-*"))

    def made_at(self) -> list[float]:
        """When an environment was made."""
        return sorted(file.stat().st_mtime for file in self._broken.glob("made-*"))

    def checkpoints(self) -> list[Path]:
        """Manifests, oldest first."""
        return sorted((self.run / "checkpoints").glob("step-*.json"), key=lambda p: int(p.stem.removeprefix("step-")))

    def workers(self) -> list[int]:
        """The living worker processes, all of them this run's own children."""
        return [pid for pid, parent in _parents().items() if parent == self.process.pid and _alive(pid)]

    def tree(self) -> set[int]:
        """All that was started for this run and still lives, orphans included once they were seen."""
        parents = _parents()
        grown = True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in self._tree} - self._tree
            grown = bool(more)
            self._tree |= more
        return {pid for pid in self._tree if _alive(pid)}

    def cpu(self) -> float:
        """Seconds of cores that the living processes of this run have used, in the kernel's ticks of 10 ms."""
        return sum(_ticks(pid) for pid in self.tree()) / os.sysconf("SC_CLK_TCK")

    def waits(self) -> bool:
        """Whether nothing of this run is at work: all of it waits for something."""
        before = self.cpu()
        time.sleep(0.1)
        return self.cpu() == before

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def clean_up(self) -> None:
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def train(folder: Path, *words: str, env: str = ENV, eval_episodes: int = 0, **variables: Any) -> Iterator[Train]:
    """A run that is certainly gone afterwards."""
    run = Train(folder, *words, env=env, eval_episodes=eval_episodes, **variables)
    try:
        yield run
    finally:
        run.clean_up()


def gone(pids: set[int], seconds: float = 30) -> bool:
    """Whether all of them end within so many seconds; by themselves they never would."""
    limit = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def shared_memory() -> set[str]:
    """What lies there, but for what mpich and PostgreSQL make: jobs and servers of other tests may run at the same time."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("mpich_shm_", "PostgreSQL."))}


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _ticks(pid: int) -> int:
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(user) + int(system)


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    return found
