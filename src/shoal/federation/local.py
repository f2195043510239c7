"""Children on the parent's machine: processes that always end when the parent does."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from shoal.core.config import Positive
from shoal.core.errors import BadInput
from shoal.process.commands import Command
from shoal.run.folder import RunFolder, read_json

RESTARTS = 3  # of a child that was killed or crashed
GRACE = 15.0  # seconds for a child to write its last checkpoint
FILE = "local.json"  # in the parent's folder


class Asked(msgspec.Struct, frozen=True):
    """What was asked of the children on this machine; a resumed run asks it again."""

    children: Positive
    slow: str  # as given to --slow
    passed: dict[str, Any]  # their own settings of `shoal join`

    @classmethod
    def read(cls, run: Path) -> Self:
        """What the run in this folder asked. `BadInput` if `shoal federation local` did not make the folder."""
        if not (run / FILE).is_file():
            raise BadInput(
                f"{str(run)!r} has no {FILE}, so it is no run of `shoal federation local`; see shoal parent --resume"
            )
        try:
            return msgspec.convert(read_json(run / FILE), cls)
        except msgspec.ValidationError as error:
            raise BadInput(f"{run / FILE}: {error}") from None

    def changed(self, own: Mapping[str, str], passed: Mapping[str, Any]) -> Asked:
        """The same with what is given now."""
        return Asked(int(own.get("children", self.children)), own.get("slow", self.slow), {**self.passed, **passed})

    def write(self, folder: RunFolder) -> None:
        folder.write_json(folder.path / FILE, msgspec.structs.asdict(self))


class LocalChildren:
    """`count` processes `shoal join ...`. A killed child is restarted under its name; a refused child ends all.

    `slow`: factors by which the children are slowed down, in order; 1 for the remaining ones.
    """

    def __init__(
        self,
        count: int,
        folder: Path,
        words: Sequence[str],
        say: Callable[[str], None],
        slow: Sequence[float] = (),
    ) -> None:
        self._count, self._folder, self._words, self._say = count, folder, tuple(words), say
        self._slow = {f"child-{number}": factor for number, factor in enumerate(slow)}
        self._running: dict[str, Command] = {}
        self._lives: dict[str, int] = {}
        self.lost: list[str] = []  # children that failed too often to be restarted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, url: str, token_file: Path) -> None:
        """Start all children."""
        self._join = ["join", url, "--token-file", str(token_file), "--quiet", *self._words]
        for number in range(self._count):
            self._begin(f"child-{number}")

    def over(self) -> bool:
        """Whether no child is left. Raises `BadInput` with the reason if a child was refused."""
        for name, child in list(self._running.items()):
            code = child.code
            if code is None:
                continue
            del self._running[name]
            if code == BadInput.exit_code:
                raise BadInput(f"{name}: {child.reason}")
            if code == 0:
                continue
            if self._lives[name] <= RESTARTS:
                self._say(f"{name} was lost ({child.reason if code > 0 else f'signal {-code}'}): restarting it")
                self._begin(name)
            else:
                self.lost.append(name)
                self._say(f"{name} was lost {self._lives[name]} times: not restarting it again")
        return not self._running

    def close(self) -> None:
        """End the running children: by SIGTERM, and after a grace period by SIGKILL."""
        for child in self._running.values():
            child.at_full_speed()
        for child in self._running.values():
            child.send(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for child in self._running.values():
            if child.wait(max(0.0, until - time.monotonic())) is None:
                child.send(signal.SIGKILL)
                child.wait(GRACE)
        self._running.clear()

    def _begin(self, name: str) -> None:
        self._lives[name] = self._lives.get(name, 0) + 1
        outs = (self._folder / (name if life == 1 else f"{name}-{life}") for life in itertools.count(1))
        out = next(out for out in outs if not out.exists())  # a resumed run has the folders of earlier lives
        self._running[name] = Command([*self._join, "--name", name, "--out", str(out)], slow=self._slow.get(name, 1.0))
