"""A run in a process of its own: start it, stream its metrics, pause or stop it, and resume it later.

A handle sees a run through its folder, so it also works for a training that was started elsewhere. Metrics are the lines of
`metrics.jsonl`; a request is a signal, and the run answers with a checkpoint and exit code 0. A paused run can be resumed
wherever its folder is, on this machine or on another.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import BadInput, RunFailed
from shoal.experiment import nest
from shoal.process import commands
from shoal.process.commands import Command
from shoal.process.lock import holder_of, wait_for
from shoal.process.relay import RemoteCommand, launcher_words
from shoal.process.signals import PAUSE, STOP
from shoal.run.folder import RunFolder, read_json
from shoal.run.sinks import MetricLines
from shoal.studies.words import flags_of

LOOK = 0.1  # seconds between two looks at a run


class RunHandle:
    """One run in another process. `start` begins or resumes one, `attach` finds one; `path` is its folder."""

    def __init__(self, path: Path | RunFolder, command: Command | None = None, *, read: int = 0) -> None:
        self._folder = path if isinstance(path, RunFolder) else RunFolder(path)
        self.path, self._command = self._folder.path, command
        self._lines, self._unread = MetricLines(self._folder.metrics_path, read), deque[dict[str, Any]]()

    def __repr__(self) -> str:
        return f"RunHandle({str(self.path)!r}{', running' if self.running else ''})"

    @classmethod
    def start(
        cls,
        env: str | None = None,
        *,
        out: str | Path | None = None,
        resume: str | Path | None = None,
        report: bool = False,
        launcher: str = "",
        **settings: Any,
    ) -> RunHandle:
        """Begin a training, or `resume` one from its last checkpoint; settings are those of `shoal.train`.

        `launcher` is a command that runs a shell's line on another machine, such as `ssh node1`; the folder must be there too.
        The process ends with this one, after a checkpoint. `env` is an id or an import path; without `out` the folder is a new
        one under `runs/`. If the training refuses its settings, `wait` raises the error.
        """
        if launcher:
            launcher_words(launcher)  # refused before a folder is made
        words, read = ["train", "--quiet", *([] if report else ["--no-report"])], 0
        if resume is not None:
            if out is not None or env is not None:
                raise BadInput("resume continues a run as it is: it takes neither env nor out")
            folder = RunFolder.open(resume)
            read = folder.metrics_path.stat().st_size if folder.metrics_path.exists() else 0
            words += ["--resume", str(folder.checkpoint or folder.path)]
        else:
            if not isinstance(env, str):
                raise BadInput(f"env is {env!r}: another process finds an environment by its id or its import path")
            nested = nest(settings)
            names = (
                str(nested.get(axis, {}).get("name", usual)) for axis, usual in (("algo", "ppo"), ("topology", "run"))
            )
            folder = RunFolder.create(out, env, *names)
            words += [env, "--out", str(folder.path)]
        words += flags_of(settings)
        return cls(folder, RemoteCommand(words, launcher) if launcher else Command(words), read=read)

    @classmethod
    def attach(cls, path: str | Path) -> RunHandle:
        """The run in this folder, whichever process trains it. Its metrics are read from their beginning."""
        return cls(RunFolder.open(path).path)

    @property
    def running(self) -> bool:
        if self._command is not None:
            return self._command.code is None
        return holder_of(self.path) is not None

    @property
    def code(self) -> int | None:
        """The exit code of a process that this handle has started; None while it runs, and for the runs of others."""
        return None if self._command is None else self._command.code

    @property
    def reason(self) -> str:
        """Why a process that this handle has started refused or failed, in one line, once it has ended."""
        return "" if self._command is None or self._command.code is None else self._command.reason

    def rows(self) -> list[dict[str, Any]]:
        """The lines of metrics that were not read yet, without waiting for more."""
        self._unread += self._lines.new()
        rows = list(self._unread)
        self._unread.clear()
        return rows

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the unread lines of metrics, then each new one, until the run has ended."""
        while True:
            running = self.running  # checked before reading: if the run has ended, all its lines are there
            self._unread += self._lines.new()
            while self._unread:
                yield self._unread.popleft()
            if not running:
                return
            self._pause()

    def pause(self) -> None:
        """Ask for a checkpoint and exit code 0; the result says `paused`. Asking again has no further effect."""
        self._ask(PAUSE)

    def stop(self) -> None:
        """Ask for a checkpoint and exit code 0; the result says `stopped`. Asking again ends the run at once."""
        self._ask(STOP)

    def kill(self) -> None:
        """End the run now, and do not let its guard start it again. Everything since its last checkpoint is lost."""
        self._ask(signal.SIGKILL)

    def wait(self, seconds: float | None = None) -> dict[str, Any]:
        """The summary of the run once it has ended, with `ended`: budget, solved, stopped or paused.

        Raises:
            TimeoutError: the run has not ended after this many seconds.
            BadInput: the training was refused.
            RunFailed: the run failed, was killed, or was stopped before it began; the message says which.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.running:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.path} still runs after {seconds} seconds")
            self._pause()
        code = 0 if self._command is None else self._command.code
        if self._command is not None and code:
            self._folder.remove_if_empty()
            raise (BadInput if code == BadInput.exit_code else RunFailed)(self._command.reason)
        if not self._folder.summary_path.exists():
            raise RunFailed(
                f"{self.path}: ended without a summary: it failed, was killed, or was stopped before it began"
            )
        return read_json(self._folder.summary_path)

    def _ask(self, number: signal.Signals) -> None:
        if self._command is not None:
            self._command.send(number)
            return
        holder = holder_of(self.path)
        if holder is None:
            raise BadInput(f"{str(self.path)!r}: no process trains there now")
        where = f"{str(self.path)!r} is trained by {holder}"
        if not holder.pid:
            raise BadInput(f"{where}, whose process id is not known yet: try again, or end it where it was started")
        if holder.host != socket.gethostname():
            raise BadInput(f"{where}: send the request on that machine")
        if number != signal.SIGKILL and not holder.takes_signals:
            raise BadInput(f"{where}, outside its main thread, where it receives no signals: stop it in that process")
        guard = holder.guard if number == signal.SIGKILL else None
        try:
            if guard is not None and guard.lives():  # first, or it would start the other again
                os.kill(guard.pid, number)
            os.kill(holder.pid, number)
        except ProcessLookupError:
            if guard is None:  # else its guard's end was its own
                raise BadInput(f"{str(self.path)!r}: no process trains there now") from None
        except PermissionError:
            raise BadInput(f"{where}, which belongs to another user") from None

    def _pause(self) -> None:
        if self._command is not None:
            self._command.wait(LOOK)
        elif (holder := holder_of(self.path)) is not None:
            wait_for(holder, LOOK)


def wait_for_any(runs: Sequence[RunHandle], seconds: float = LOOK) -> None:
    """Wait until one of the runs that these handles have started ends, at most this long."""
    commands.wait_for_any([run._command for run in runs if run._command is not None], seconds)
