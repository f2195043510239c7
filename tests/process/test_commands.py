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
        commands, "_ENTRY", f"{start}\nopen(sys.argv[2], 'w').close()\nimport time\ntime.sleep({PATIENCE})"
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
