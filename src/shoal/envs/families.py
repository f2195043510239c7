"""EnvPool's table of ids, imported one family at a time.

`import envpool` loads 17 families, 1,651 ids and matplotlib, which takes a second. Training needs one family, and Gymnasium's
entry point of the same id shows which. Any other id, or other code in this process that uses EnvPool, loads all of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# Module of Gymnasium's environment -> EnvPool's family of the same environment.
FAMILIES = {
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.classic_control": "classic_control",
    "gymnasium.envs.phys2d": "classic_control",
    "gymnasium.envs.toy_text": "toy_text",
    "gymnasium.envs.tabular": "toy_text",
    "gymnasium.envs.mujoco": "mujoco.gym",
    "ale_py": "atari",
}


class _Table(dict[str, Any]):
    """The ids of the families imported so far. A lookup that they cannot answer imports the others."""

    importing = 0  # above 0 while a family registers its ids: its lookups must not import the others

    def add(self, module: str) -> None:
        self.importing += 1
        try:
            importlib.import_module(module)
        finally:
            self.importing -= 1

    def complete(self) -> None:
        if not self.importing:
            self.add("envpool.entry")

    def holds(self, task: str) -> bool:
        return super().__contains__(task)

    def __contains__(self, task: object) -> bool:
        if not super().__contains__(task):
            self.complete()
        return super().__contains__(task)

    def __missing__(self, task: str) -> Any:
        self.complete()
        if self.holds(task):
            return self[task]
        raise KeyError(task)

    def __iter__(self) -> Iterator[str]:
        self.complete()
        return super().__iter__()

    def keys(self) -> Any:
        self.complete()
        return super().keys()


def table(task: str, home: str | None) -> dict[str, Any]:
    """EnvPool's specs by id, including the family of `task`. `home` is the entry point of Gymnasium's environment, if any."""
    specs = _registry().specs
    if isinstance(specs, _Table) and not specs.holds(task):
        family = next((family for place, family in FAMILIES.items() if home and home.startswith(place)), None)
        if family is not None:
            specs.add(f"envpool.{family}.registration")
    return specs  # type: ignore[no-any-return] # EnvPool has no types


def _registry() -> Any:
    """EnvPool's registry without the imports of `envpool.entry`; complete if EnvPool was imported before."""
    if "envpool" not in sys.modules:
        sys.modules["envpool.entry"] = ModuleType("envpool.entry")
        try:
            importlib.import_module("envpool")
        finally:
            del sys.modules["envpool.entry"]
        registry = importlib.import_module("envpool.registration").registry
        registry.specs = _Table(registry.specs)
    return importlib.import_module("envpool.registration").registry
