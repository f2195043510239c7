"""Runs that a study needs: each is trained in a process of its own, as a user would start it, unless it exists already."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import BadInput, RunFailed
from shoal.process.commands import Finished, run_command
from shoal.run.folder import read_json
from shoal.studies.words import flags_of


def finished_run(words: Sequence[str], settings: Mapping[str, Any], out: Path) -> Path:
    """The folder `out` of a finished run, which the command `words` trains with these settings first if it is missing.

    An interrupted run starts over, so that its times are those of one uninterrupted run.

    Raises:
        BadInput: the training was refused.
        RunFailed: the training failed.
        KeyboardInterrupt: the training was stopped, which stops the study too.
    """
    if is_finished(out):
        return out
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    succeeded([*words, "--out", str(out), "--quiet", "--no-report", *flags_of(settings)])
    if not is_finished(out):
        raise KeyboardInterrupt
    return out


def is_finished(out: Path) -> bool:
    return (out / "summary.json").is_file() and not read_json(out / "summary.json")["stopped"]


def succeeded(words: Sequence[str], seconds: float | None = None) -> Finished:
    """The result of a command of Shoal; a training is paused after `seconds`.

    Raises `BadInput` or `RunFailed`, with its last line, if it did not succeed.
    """
    done = run_command(list(words)) if seconds is None else run_command(list(words), seconds)
    if done.code:
        raise (BadInput if done.code == BadInput.exit_code else RunFailed)(done.reason)
    return done
