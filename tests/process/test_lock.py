"""The lock of a run folder: one training at a time, and free as soon as its holder is gone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.core.errors import BadInput
from shoal.process.lifetime import Guard
from shoal.process.lock import RunLock, holder_of


def taken(folder: Path) -> bool:
    try:
        with RunLock(folder):
            return False
    except BadInput:
        return True


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    who = rf"process {os.getpid()} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    with RunLock(tmp_path):
        with pytest.raises(BadInput, match=f"is in use by {who}: one training at a time") as refused, RunLock(tmp_path):
            pass
        assert "\n" not in str(refused.value) and refused.value.exit_code == 2
    assert not taken(tmp_path)


HOLD = """
import os, signal, sys
from pathlib import Path
from shoal.process.lock import RunLock
lock = RunLock(Path(sys.argv[1])).__enter__()
"""
WAIT = (
    HOLD
    + """
print(os.getpid(), flush=True)
signal.pause()
"""
)
LEAVE = (
    HOLD
    + """
if os.fork() == 0:
    print(os.getpid(), flush=True)  # the child itself: what it does right after the fork is done by now
    signal.pause()
sys.stdin.read()
"""
)


@contextlib.contextmanager
def holding(code: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock, and the number that it says; what it is and what it left are killed in the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        said = int(process.stdout.readline())
        try:
            yield process, said
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(said, signal.SIGKILL)
            process.kill()


def test_death_frees_it(tmp_path: Path) -> None:
    with holding(WAIT, tmp_path) as (process, pid):
        with pytest.raises(BadInput, match=f"process {pid} on"), RunLock(tmp_path):
            pass
        process.kill()
        process.wait()
        assert not taken(tmp_path)


def test_a_forked_child_that_outlives_the_run_does_not_hold_it(tmp_path: Path) -> None:
    with holding(LEAVE, tmp_path) as (process, child):
        assert taken(tmp_path), "the child's end is not the holder's"
        process.kill()
        process.wait()
        os.kill(child, 0)  # it is still there
        assert not taken(tmp_path)


def test_a_lock_that_was_opened_before_its_holder_left_is_not_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between another's open and its lock, the holder goes and removes the file: the other takes the next file."""
    holder, real = RunLock(tmp_path).__enter__(), fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        holder.__exit__(None, None, None)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with RunLock(tmp_path):
        assert taken(tmp_path) and (tmp_path / "run.lock").exists()
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_who_looks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process asks who holds the lock at the very moment when it is taken."""
    real, looks = fcntl.flock, [os.open(tmp_path / "run.lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    for look in looks:
        real(look, fcntl.LOCK_SH)

    def looked(descriptor: int, how: int) -> None:
        try:
            real(descriptor, how)
        finally:
            if looks:
                os.close(looks.pop())

    monkeypatch.setattr(fcntl, "flock", looked)
    with RunLock(tmp_path):
        monkeypatch.setattr(fcntl, "flock", real)
        assert taken(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_holder_that_has_not_said_who_it_is(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_bytes(b"")
        with pytest.raises(BadInput, match="is in use by another process"), RunLock(tmp_path):
            pass


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write the run folder"), RunLock(tmp_path / "nowhere"):
        pass


def test_a_look_does_not_refuse_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`holder_of` in another process holds the lock for a moment."""
    (tmp_path / "run.lock").touch()
    look = os.open(tmp_path / "run.lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    real, tries = fcntl.flock, list[int]()

    def flock(descriptor: int, how: int) -> None:
        tries.append(how)
        if len(tries) == 4:
            real(look, fcntl.LOCK_UN)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with RunLock(tmp_path):
        monkeypatch.setattr(fcntl, "flock", real)
        assert len(tries) == 4 and taken(tmp_path)
    os.close(look)


def test_a_lock_without_a_word_is_held(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_bytes(b"")
        assert str(holder_of(tmp_path)) == "another process"
    assert holder_of(tmp_path) is None


def test_a_guard_is_known_by_its_start_too() -> None:
    own = Guard.of(os.getpid())
    assert own.lives() and not Guard(own.pid, "1").lives(), "the number of a process is used again"
    with subprocess.Popen(["sleep", "60"]) as process:
        other = Guard.of(process.pid)
        assert other.lives()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not other.lives(), "ended, though nobody has asked how"


def test_a_file_system_without_locks_has_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a folder there would count as being trained for good, and no study could resume its trials."""
    alerts: list[str] = []

    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with RunLock(tmp_path, alerts.append):
        assert len(alerts) == 1 and "cannot lock" in alerts[0]
    assert holder_of(tmp_path) is None
