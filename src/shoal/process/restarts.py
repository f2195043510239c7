"""Restarts of a run whose main process is killed: a minimal parent resumes it from its last checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from shoal.process.lifetime import guarded_by, killed_with_parent
from shoal.process.signals import REQUESTS

Begun = Callable[[Path], None]  # called by the main process with the folder of its first checkpoint


def restarted(times: int, run: Callable[[Path | None, Begun], int]) -> int:
    """The exit code of `run(folder, begun)` in a process of its own; `folder` is None at first, then the one to resume.

    Call it before any heavy import and before any thread is started: the parent stays as small as it is then.
    """
    folder: Path | None = None
    for left in range(times, -1, -1):
        reading, writing = os.pipe()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            os.close(reading)
            killed_with_parent()
            if os.getppid() != parent:  # the parent was killed before the line above
                os._exit(1)
            guarded_by(parent)
            os.setpgid(0, 0)  # a terminal's Ctrl-C goes to the parent, which passes it on once

            def begun(path: Path, writing: int = writing) -> None:
                os.write(writing, os.fsencode(path.resolve()))
                os.close(writing)

            return run(folder, begun)
        os.close(writing)
        status, stopped = _wait(child)
        with open(reading, "rb") as pipe:
            folder = Path(os.fsdecode(name)) if (name := pipe.read()) else folder
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        cause = f"the main process was ended by {signal.Signals(-code).name}"
        if stopped or folder is None or left == 0:
            hint = "" if folder is None else f"; shoal train --resume {folder} continues"
            _say(f"shoal: {cause}{hint}")
            return 1
        _log(folder, cause)
        _say(f"{cause}: resuming from the last checkpoint in {folder} ({times - left + 1} of {times} restarts)")
    raise AssertionError("the last round returns")


def _wait(child: int) -> tuple[int, bool]:
    """(exit status, whether a stop was requested). Passes requests to stop on to the child."""
    asked: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    previous: dict[signal.Signals, Any] = {number: signal.signal(number, hand_on) for number in REQUESTS}
    try:
        return os.waitpid(child, 0)[1], bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _log(folder: Path, cause: str) -> None:
    with contextlib.suppress(OSError), (folder / "faults.log").open("a") as file:
        file.write(f"{time.strftime('%F %T')} main main_died\n{cause}\n\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
