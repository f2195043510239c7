"""Whatever is killed, whenever: every push counts once, versions never go back, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import witness

from shoal.core.errors import BadInput
from shoal.federation import state, status
from shoal.federation.parent_folder import ParentFolder
from shoal.federation.token_files import read_token
from shoal.launch.saved import under
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import read_json

SOURCE = Path(__file__).parents[2] / "src"
PATIENCE = 180.0  # seconds for what is certain to come, on however busy a machine
RUN = ["--algo", "a2c", "--net.hidden", "4", "--steps", "1000000000", "--eval-episodes", "0", "--eval-every", "0"]
RUN += ["--every-updates", "1", "--checkpoint-every", "0.2"]
CHILD = ["--runtime", "threads", "--actors", "1", "--envs", "2"]
WORKERS = ["--runtime", "processes", "--actors", "2", "--envs", "2"]


class Process:
    """A `shoal ...` in a session of its own, which with a `log` witnesses its pushes."""

    def __init__(self, folder: Path, *words: str, log: Path | None = None) -> None:
        entry = ["-m", "shoal"] if log is None else [str(Path(witness.__file__)), str(log)]
        self._error = folder / f"stderr-{time.monotonic_ns()}"
        with self._error.open("wb") as error:
            self.process = subprocess.Popen(
                [sys.executable, *entry, *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                stdin=subprocess.DEVNULL,
                stdout=error,
                stderr=error,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._error.read_text()

    def tree(self) -> set[int]:
        """This process and all that descend from it."""
        found, new = {self.process.pid}, {self.process.pid}
        while new:
            children = {int(c) for pid in new for c in _children(pid)}
            new = children - found
            found |= children
        return found

    def close(self) -> None:
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _children(pid: int) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += (task / "children").read_text().split()
    return found


@contextlib.contextmanager
def started(folder: Path, *words: str) -> Iterator[Process]:
    process = Process(folder, *words)
    try:
        yield process
    finally:
        process.close()


def until(what: Callable[[], Any], process: Process | None = None) -> Any:
    limit = time.monotonic() + PATIENCE
    while not (found := what()):
        ended = None if process is None else process.process.poll()
        assert ended is None, f"it ended with {ended}: {process.said if process else ''}"
        assert time.monotonic() < limit, process.said if process else "nothing came"
        time.sleep(0.05)
    return found


def gone(pids: set[int]) -> bool:
    def running(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    limit = time.monotonic() + 30
    while any(running(pid) for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


class Watched:
    """A parent on a port that is known, asked for its status."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.url, self.version = f"ws://127.0.0.1:{self.port}", 0

    def report(self) -> dict[str, Any]:
        """{} while the parent does not answer. Its version never goes back, over all restarts."""
        try:
            found = status.ask(self.url, read_token(self.run / "token"))
        except BadInput:
            return {}
        assert found["version"] >= self.version
        self.version = found["version"]
        return found

    def pushes(self, child: str) -> int:
        return next((c["pushes"] for c in self.report().get("children", []) if c["child"] == child), 0)

    def last(self) -> state.State:
        """The state of the last checkpoint."""
        settled = ParentFolder.settled(self.run)
        assert settled.run
        loaded = Checkpoints(self.run / "checkpoints").load()
        return state.from_arrays(under(loaded.arrays, "federation/"))

    def check_consistent(self) -> None:
        """What the last checkpoint holds agrees with itself."""
        found = self.last()
        assert found.pushes == sum(child.pushes for child in found.children.values())
        assert all(child.sequence >= child.pushes for child in found.children.values())
        assert found.steps == sum(child.steps for child in found.children.values())


def test_a_child_is_killed_and_then_the_parent_of_a_local_federation(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    words = ["federation", "local", "CartPole-v1", "--children", "2", "--bind", f"127.0.0.1:{watched.port}"]
    with started(tmp_path, *words, "--out", str(watched.run), *RUN, *CHILD) as local:
        until(lambda: watched.pushes("child-0") and watched.pushes("child-1"), local)
        victim = until(lambda: _named(local, "child-0"), local)
        os.kill(victim, signal.SIGKILL)
        until(lambda: "child-0 was lost" in local.said, local)
        before = watched.pushes("child-0")
        until(lambda: watched.pushes("child-0") > before + 2, local)  # it begins again under its name
        tree = local.tree()
        os.kill(local.process.pid, signal.SIGKILL)
        local.process.wait()
        assert gone(tree)
    watched.check_consistent()


def _named(process: Process, child: str) -> int:
    for pid in process.tree():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if child.encode() in words and b"join" in words:
                return pid
    return 0


@pytest.mark.slow
def test_a_child_with_worker_processes_is_killed_and_leaves_nothing(tmp_path: Path) -> None:
    watched, memory = Watched(tmp_path), set(os.listdir("/dev/shm"))
    bind = ["--bind", f"127.0.0.1:{watched.port}"]
    with started(tmp_path, "parent", "CartPole-v1", "--out", str(watched.run), *bind, *RUN) as parent:
        until(watched.report, parent)
        join = ["join", watched.url, "--token-file", str(watched.run / "token"), "--name", "one", *WORKERS]
        with started(tmp_path, *join, "--out", str(tmp_path / "child")) as child:
            until(lambda: watched.pushes("one"), child)
            tree = child.tree()
            assert len(tree) == 3, child.said
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait()
            assert gone(tree)
        until(lambda: not watched.report()["children"][0]["present"], parent)
        tree = parent.tree()
        parent.process.send_signal(signal.SIGTERM)
        assert parent.process.wait(PATIENCE) == 0, parent.said
        assert gone(tree)
    assert set(os.listdir("/dev/shm")) <= memory
    watched.check_consistent()


def test_a_parent_that_is_asked_to_stop_says_so_and_goes_on_later(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    bind = ["--bind", f"127.0.0.1:{watched.port}"]
    with started(tmp_path, "parent", "CartPole-v1", "--out", str(watched.run), *bind, *RUN) as parent:
        until(watched.report, parent)
        join = ["join", watched.url, "--token-file", str(watched.run / "token"), "--name", "one", *CHILD]
        with started(tmp_path, *join, "--out", str(tmp_path / "child")) as child:
            until(lambda: watched.pushes("one"), child)
            parent.process.send_signal(signal.SIGTERM)
            assert parent.process.wait(PATIENCE) == 0, parent.said
            assert read_json(watched.run / "summary.json")["ended"] == "stopped"
            version = watched.version
            with started(tmp_path, "parent", "--resume", str(watched.run), *bind) as again:
                before = until(lambda: watched.pushes("one"), again)
                until(lambda: watched.pushes("one") > before + 2, child)  # the child trained on alone, and rejoined
                assert watched.version > version
                child.process.send_signal(signal.SIGINT)
                assert child.process.wait(PATIENCE) == 0, child.said
                os.kill(again.process.pid, signal.SIGKILL)
    watched.check_consistent()


@pytest.mark.slow
def test_a_local_child_that_is_refused_ends_all_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["federation", "local", "CartPole-v1", "--runtime", "fused", "--topology", "sync", "--quiet"]
    with started(tmp_path, *words, "--out", str(tmp_path / "run")) as local:
        assert local.process.wait(PATIENCE) == 2
        assert (
            local.said.startswith("shoal: child-") and "does not provide" in local.said and local.said.count("\n") == 1
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_child_is_small(tmp_path: Path) -> None:
    """With one actor it needs less than 350 MB, so that it fits beside a system on a Raspberry Pi of 512 MB."""
    watched = Watched(tmp_path)
    bind = ["--bind", f"127.0.0.1:{watched.port}"]
    with started(tmp_path, "parent", "CartPole-v1", "--out", str(watched.run), *bind, *RUN) as parent:
        until(watched.report, parent)
        join = ["join", watched.url, "--token-file", str(watched.run / "token"), "--name", "one", *CHILD]
        with started(tmp_path, *join, "--out", str(tmp_path / "child")) as child:
            until(lambda: watched.pushes("one") > 20, child)
            status_ = Path(f"/proc/{child.process.pid}/status").read_text()
            peak = int(status_.partition("VmHWM:")[2].split()[0]) / 1024
            assert peak < 350, f"{peak:.0f} MB"


@pytest.mark.slow
def test_fifty_kills(tmp_path: Path) -> None:
    """Parent and children are killed at 50 random moments, and begin again each time. No push counts twice, whatever its number:
    the last checkpoint contains exactly the pushes that were applied on the way to it, and those are all different."""
    generator, watched = random.Random(0), Watched(tmp_path)
    applied, confirmed = tmp_path / "applied", tmp_path / "confirmed"
    bind = ["--bind", f"127.0.0.1:{watched.port}"]
    running: dict[str, Process] = {}
    killed: set[int] = set()

    def begin(name: str) -> None:
        if name == "parent":
            run = (
                ["--resume", str(watched.run)]
                if watched.run.exists()
                else ["CartPole-v1", "--out", str(watched.run), *RUN]
            )
            running[name] = Process(tmp_path, "parent", *run, *bind, log=applied)
            return
        join = ["join", watched.url, "--token-file", str(watched.run / "token"), "--name", name, *CHILD]
        out = str(tmp_path / f"{name}-{time.monotonic_ns()}")
        running[name] = Process(tmp_path, *join, "--out", out, log=confirmed)

    try:
        begin("parent")
        until(watched.report, running["parent"])
        for name in ("one", "two"):
            begin(name)
        until(lambda: watched.pushes("one") and watched.pushes("two"))
        for _ in range(50):
            until(watched.report)
            time.sleep(generator.uniform(0.0, 1.0))
            name = generator.choice(list(running))
            victim = running[name]
            killed |= victim.tree()
            os.kill(victim.process.pid, signal.SIGKILL)
            victim.process.wait()
            if name != "parent":
                until(watched.report)
            begin(name)
            if name == "parent":
                until(watched.report, running[name])
            for child in ("one", "two"):  # a child that came while its parent was away was refused
                if running[child].process.poll() is not None:
                    begin(child)
        before = until(watched.report)["pushes"]
        until(lambda: watched.report().get("pushes", 0) > before + 10)
    finally:
        for process in running.values():
            killed |= process.tree()
            process.close()
    assert gone(killed)
    watched.check_consistent()
    lineage = witness.Lineage()
    lineage.take(witness.read(applied))
    last = {name: child._asdict() for name, child in watched.last().children.items()}
    lineage.restored(last)
    assert all(len(pushes) > 10 for pushes in lineage.pushes.values())
    assert lineage.check_confirmed(witness.read(confirmed)) > 50
