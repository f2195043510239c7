"""The lock of a run folder: one training at a time, and free as soon as its holder is gone."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from shoal.core.errors import BadInput
from shoal.run.lock import RunLock


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


def forked(tmp_path: Path, hold: bool) -> tuple[int, int]:
    """(a child, the pipe on which it says that it is ready): it takes the lock, or inherits ours, and waits to be killed."""
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        if hold:
            RunLock(tmp_path).__enter__()
        os.write(says, b"x")
        signal.pause()
        os._exit(0)
    os.close(says)
    return child, heard


def end(child: int, heard: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(heard)


def test_death_frees_it(tmp_path: Path) -> None:
    child, heard = forked(tmp_path, hold=True)
    try:
        assert os.read(heard, 1) == b"x"
        with pytest.raises(BadInput, match=f"process {child} on"), RunLock(tmp_path):
            pass
    finally:
        end(child, heard)
    assert not taken(tmp_path)


def test_a_forked_child_that_outlives_the_run_does_not_hold_it(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        child, heard = forked(tmp_path, hold=False)
        assert os.read(heard, 1) == b"x"
        assert taken(tmp_path), "and its end is not ours"
    try:
        assert not taken(tmp_path)
    finally:
        end(child, heard)


def test_a_holder_that_has_not_said_who_it_is(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_bytes(b"")
        with pytest.raises(BadInput, match="is in use by another process"), RunLock(tmp_path):
            pass


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write the run folder"), RunLock(tmp_path / "nowhere"):
        pass
