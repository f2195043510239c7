"""Pardons: `shoal federation forgive` leaves a file in the run folder, and the parent, running or resumed, ends the quarantine."""

from __future__ import annotations

from pathlib import Path

from shoal.core.errors import BadInput

FOLDER = "forgiven"


def leave(run: Path, child: str) -> None:
    """Ask the parent of this run to forgive a child; its name is a valid one."""
    try:
        (run / FOLDER).mkdir(exist_ok=True)
        (run / FOLDER / child).touch()
    except OSError as error:
        raise BadInput(f"cannot write to {str(run)!r}: {error.strerror}") from None


def take(run: Path) -> list[str]:
    """The children to forgive, each of them once."""
    try:
        found = sorted((run / FOLDER).iterdir())
    except OSError:
        return []
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]
