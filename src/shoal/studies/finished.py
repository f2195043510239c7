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

CHILDREN = "children"  # end of a federation that has no child left


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
    if is_finished(out):
        return out
    if _summary(out).get("ended") == CHILDREN:
        raise RunFailed(f"{out}: the children of the federation ended before its budget was spent")
    raise KeyboardInterrupt


def is_finished(out: Path) -> bool:
    """Whether a training ended by itself at its budget or goal. A federation whose children were lost did not."""
    summary = _summary(out)
    return bool(summary) and not summary["stopped"] and summary.get("ended") != CHILDREN


def _summary(out: Path) -> dict[str, Any]:
    file = out / "summary.json"
    return read_json(file) if file.is_file() else {}


def succeeded(words: Sequence[str], seconds: float | None = None) -> Finished:
    """The result of a command of Shoal; a training is paused after `seconds`.

    Raises `BadInput` or `RunFailed`, with its last line, if it did not succeed.
    """
    done = run_command(list(words)) if seconds is None else run_command(list(words), seconds)
    if done.code:
        raise (BadInput if done.code == BadInput.exit_code else RunFailed)(done.reason)
    return done
