"""The journal: torn lines are cut, killed holders let go, bad paths are refused."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from shoal.core.errors import BadInput
from shoal.tuning.storage import JournalLock, open_journal


def study(path: Path) -> optuna.Study:
    return optuna.create_study(study_name="s", storage=open_journal(path), load_if_exists=True)


@pytest.mark.parametrize("torn", [b'{"op_code": 4, "work', b"{", b'{"op_code":5}' * 9000])
def test_a_torn_last_line_is_cut_when_the_journal_is_opened(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal"
    study(path).ask()
    sound = path.read_bytes()
    path.write_bytes(sound + torn)
    open_journal(path)
    assert path.read_bytes() == sound
    study(path).ask()
    assert len(study(path).trials) == 2


def test_a_line_torn_while_others_write_is_cut_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    open_one = study(path)
    with path.open("ab") as file:
        file.write(b'{"op_code": 4, "work')  # a writer died here
    open_one.ask()
    assert [json.loads(line)["op_code"] for line in path.read_text().splitlines()]
    assert len(study(path).trials) == 1


def test_a_file_that_is_one_torn_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"{")
    assert open_journal(path).get_all_studies() == [] and path.read_bytes() == b""


HOLDER = """
import sys
from shoal.tuning.storage import JournalLock
lock = JournalLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_holder_lets_go_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    trials = study(path)
    command = [sys.executable, "-c", HOLDER, str(path)]
    waiter = os.open(f"{path}.lock", os.O_RDWR)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            fcntl.flock(waiter, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(holder.pid, signal.SIGKILL)
    fcntl.flock(waiter, fcntl.LOCK_EX | fcntl.LOCK_NB)  # at once: Optuna's own lock waits 30 s
    os.close(waiter)
    trials.ask()


def test_the_lock_excludes_and_is_released_once(tmp_path: Path) -> None:
    one = JournalLock(str(tmp_path / "journal"))
    one.acquire()
    one.release()
    with pytest.raises(RuntimeError, match="is not held"):
        one.release()


def test_bad_paths_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot open the journal '.*nowhere/journal': No such file or directory"):
        open_journal(tmp_path / "nowhere" / "journal")
    with pytest.raises(BadInput, match=r"cannot open the journal .*Is a directory"):
        open_journal(tmp_path)
    (tmp_path / "text").write_text("one\ntwo\nthree\n")
    with pytest.raises(BadInput, match="text' is not a journal"):
        open_journal(tmp_path / "text")
    assert (tmp_path / "text").read_text() == "one\ntwo\nthree\n"
