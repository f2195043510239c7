"""Errors, sorted by whose fault they are: the user's (`BadInput`, exit code 2) or the run's (`RunFailed`, exit code 1)."""

import difflib
from collections.abc import Callable, Iterable


class ShoalError(Exception):
    """Any error that Shoal raises on purpose. Its message is one line that names the value and the rule."""

    exit_code = 1


class BadInput(ShoalError):
    """The request cannot be met as it stands; nothing was started and nothing was lost."""

    exit_code = 2


class UnknownEnv(BadInput):
    """No environment has this name."""


class RunFailed(ShoalError):
    """The run started and could not continue; its progress is in its checkpoints. `detail` is for the log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class EnvFault(ShoalError):
    """An environment raised, hung or returned NaN or infinity."""


# Exceptions that an environment's own code may raise. Its `sys.exit()` must not end the run.
FROM_ENV = (Exception, SystemExit)


def nearest(name: str, valid: Iterable[str], most: int = 3, show: Callable[[str], str] = str) -> str:
    """` Did you mean 'a' or 'b'?` for the closest valid names, each formatted by `show`, or an empty string."""
    close = difflib.get_close_matches(name, list(valid), n=most, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(show(c)) for c in close)}?" if close else ""
