"""Commands in processes of their own: they end with this process, not with the thread that started them."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from shoal.process import commands

PATIENCE = 60  # seconds for what is certain to come


def test_a_command_outlives_the_thread_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "ready"
    # In place of `shoal`: the process sleeps, with its parent's end already asked for.
    start, _, _ = commands._ENTRY.partition("if os.getppid()")
    monkeypatch.setattr(
        commands, "_ENTRY", f"{start}\nopen(sys.argv[3], 'w').close()\nimport time\ntime.sleep({PATIENCE})"
    )
    begun: list[commands.Command] = []

    def work() -> None:
        begun.append(commands.Command([str(ready)]))
        deadline = time.monotonic() + PATIENCE
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    [command] = begun
    try:
        assert ready.exists() and command.wait(0.5) is None
    finally:
        command.send(signal.SIGKILL)
        assert command.wait(PATIENCE) is not None


def test_a_slowed_command_stands_still_most_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found stopped and found running, goes on at full speed when asked to, and hears a request then."""
    ready = tmp_path / "ready"
    start, _, _ = commands._ENTRY.partition("if os.getppid()")
    entry = f"{start}\nopen(sys.argv[3], 'w').close()\nwhile True:\n    pass"
    monkeypatch.setattr(commands, "_ENTRY", entry)
    command = commands.Command([str(ready)], slow=3.0)
    try:
        seen = set()
        deadline = time.monotonic() + PATIENCE
        while not (ready.exists() and {"T", "R"} <= seen) and time.monotonic() < deadline:
            seen.add(state_of(command.pid))
            time.sleep(0.001)
        assert ready.exists() and {"T", "R"} <= seen
        command.at_full_speed()
        assert "T" not in {state_of(command.pid) for _ in range(200)}
        command.send(signal.SIGTERM)
        assert command.wait(PATIENCE) == -signal.SIGTERM
        command.at_full_speed()
    finally:
        command.at_full_speed()
        command.send(signal.SIGKILL)
        command.wait(PATIENCE)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_slowed_command_that_ends_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, _, _ = commands._ENTRY.partition("if os.getppid()")
    monkeypatch.setattr(commands, "_ENTRY", f"{start}\nsys.exit(7)")
    command = commands.Command(["x"], slow=2.0)
    deadline = time.monotonic() + PATIENCE
    while command.wait(0.1) is None:
        assert time.monotonic() < deadline
    assert command.code == 7
    command.at_full_speed()


def test_a_command_that_takes_too_long_is_asked_to_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: (print('paused'), sys.exit(0)))\n"
    monkeypatch.setattr(commands, "_ENTRY", f"{entry}print('began', flush=True)\ntime.sleep({PATIENCE})")
    began = time.monotonic()
    assert commands.run_command(["eval"], 3.0) == (0, "began\npaused\n", "")
    assert 3.0 <= time.monotonic() - began < PATIENCE
    monkeypatch.setattr(commands, "_ENTRY", "print('done')")
    assert commands.run_command(["eval"], float(PATIENCE)).out == "done\n"
