"""Witnesses of pushes: processes that write down which pushes they apply or were told were applied, and what must hold of that.

`python witness.py LOG WORDS ...` is `shoal WORDS ...`. A parent writes a line before a push becomes part of its state, so that a
checkpoint contains none without a line, and a line when it restores a checkpoint; a child writes one for each confirmed push.
A push is known by its child, its base and its weights, whatever number it travels under.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Applied(NamedTuple):
    """A push that a parent applied."""

    sequence: int
    steps: int
    what: str  # fingerprint of its base and weights


class Lineage:
    """The pushes that the parent's weights contain: those of its last life, and those before that each checkpoint kept."""

    def __init__(self) -> None:
        self.pushes: dict[str, list[Applied]] = {}
        self.ever: set[tuple[str, str]] = set()  # (child, what), with those that a restart lost

    def take(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Follow a parent's log."""
        for line in lines:
            if "children" in line:
                self.restored(line["children"])
                continue
            one = Applied(line["sequence"], line["steps"], line["what"])
            self.pushes.setdefault(line["child"], []).append(one)
            self.ever.add((line["child"], one.what))

    def restored(self, children: Mapping[str, Mapping[str, int]]) -> None:
        """Go back to a checkpoint, which must count exactly the pushes that were applied until then."""
        for name in set(self.pushes) - set(children):
            self.pushes[name] = []
        for name, child in children.items():
            kept = self.pushes.setdefault(name, [])[: child["pushes"]]
            assert len(kept) == child["pushes"], f"{name}: {child['pushes']} pushes counted, {len(kept)} applied"
            assert sum(one.steps for one in kept) == child["steps"], f"{name}: steps"
            assert not kept or kept[-1].sequence == child["sequence"], f"{name}: sequence number"
            self.pushes[name] = kept
        self.check()

    def check(self) -> None:
        """Each push counts once, in the order in which its child sent it."""
        for name, applied in self.pushes.items():
            numbers = [one.sequence for one in applied]
            assert numbers == sorted(set(numbers)), f"{name}: sequence numbers are not increasing"
            assert len({one.what for one in applied}) == len(applied), f"{name}: a push was applied twice"

    def check_confirmed(self, lines: Iterable[Mapping[str, Any]]) -> int:
        """Every push that its child counts as applied was applied by some life of the parent; their number."""
        confirmed = [(line["child"], line["what"]) for line in lines]
        assert len(set(confirmed)) == len(confirmed), "a push was confirmed twice"
        assert set(confirmed) <= self.ever, "a child counts a push as applied that never was"
        return len(confirmed)


def read(log: Path) -> list[dict[str, Any]]:
    """The lines of a log; the kill of its process may have cut the last one."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def fingerprint(base: int, vector: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(vector, np.float32).tobytes())
    digest.update(str(base).encode())
    return digest.hexdigest()


def main(log: str, *words: str) -> None:
    import runpy

    from shoal.federation import state
    from shoal.federation.courier import Courier
    from shoal.federation.parent_folder import ParentFolder, Restored

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(**line: Any) -> None:
        os.write(file, json.dumps(line).encode() + b"\n")

    apply, restored, confirm = state.apply, ParentFolder.restored, Courier._confirm

    def witnessed_apply(before: Any, rule: Any, push: Any, now: float, **how: Any) -> Any:
        after, new = apply(before, rule, push, now, **how)
        if new:
            what = fingerprint(push.base, push.vector)
            write(child=push.child, sequence=push.sequence, steps=push.steps, what=what)
        return after, new

    def witnessed_restored(folder: ParentFolder) -> Restored:
        found = restored(folder)
        write(children={name: child._asdict() for name, child in found.state.children.items()})
        return found

    def witnessed_confirm(courier: Courier) -> None:
        assert courier._open is not None
        what = fingerprint(courier._open.header.base, courier._open.encoded[0].value)
        write(child=courier.child, what=what)
        confirm(courier)

    state.apply, ParentFolder.restored, Courier._confirm = witnessed_apply, witnessed_restored, witnessed_confirm  # type: ignore[method-assign, assignment]
    sys.argv = ["shoal", *words]
    runpy.run_module("shoal", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
