"""Shoal's own commands on other machines: a launcher such as `ssh node1` starts a relay there, which runs the command.

A launcher is a command that takes a line for a shell as its last word: `ssh node1`, `srun -w node1 sh -c`. Requests travel
through its standard input, as signal numbers, and the relay passes them on. When that input ends, because this process or the
connection is gone, the command is asked to stop: a training writes its checkpoint. Both machines need the same folders, and the
same Python under the same path.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO

from shoal.core.errors import BadInput
from shoal.process.commands import Command, start

SIGNALLED = 128  # a shell's exit code for a command that a signal has ended is this plus the signal's number


class RemoteCommand(Command):
    """`shoal WORDS ...` on the machine of a launcher. It is asked to stop when this process ends."""

    def __init__(self, words: Sequence[str], launcher: str) -> None:
        line = shlex.join([sys.executable, "-m", "shoal.process.relay", *words])
        paths = os.pathsep.join(p for p in sys.path if p)
        # `exec` leaves no shell between the launcher and the relay; the first word keeps the command readable in `ps`.
        self._line = f"cd {shlex.quote(os.getcwd())} && PYTHONPATH={shlex.quote(paths)} exec {line}"
        self._launcher = launcher_words(launcher)
        super().__init__(words)

    def _started(self, words: Sequence[str], err: int, orphaned: signal.Signals) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._launcher, self._line],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=err,
            text=True,
            process_group=0,
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal through the relay; it has no effect once the command has ended."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._child.stdin.write(f"{int(number)}\n")
            self._child.stdin.flush()

    def hang_up(self) -> None:
        """End the relay's input: it asks the command to stop."""
        assert self._child.stdin is not None
        self._child.stdin.close()


def launcher_words(launcher: str) -> list[str]:
    """The words of a launcher. `BadInput` if it is empty, or if its program is not installed."""
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise BadInput(f"launcher {launcher!r}: {error}") from None
    if not words:
        raise BadInput("a launcher is empty: expected a command such as 'ssh node1'")
    if shutil.which(words[0]) is None:
        raise BadInput(f"launcher {launcher!r}: there is no program {words[0]!r} here")
    return words


def relay(words: Sequence[str], requests: BinaryIO) -> int:
    """Run `shoal WORDS ...`, pass on the signals that `requests` names, and return the exit code."""
    child = start(words, subprocess.DEVNULL, None)

    def listen() -> None:
        for line in requests:
            with contextlib.suppress(ValueError):
                child.send_signal(int(line))
        child.send_signal(signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else SIGNALLED - code


if __name__ == "__main__":
    ended = relay(sys.argv[1:], sys.stdin.buffer)
    sys.stderr.flush()
    os._exit(ended)  # the listener may still be reading
