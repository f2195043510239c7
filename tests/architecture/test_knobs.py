"""Every setting is read by somebody: a knob that turns nothing is a lie."""

from __future__ import annotations

import ast

from source import modules, reads, settings

# Fields that nobody reads, with the reason. A reader makes its line here a failure, so the list cannot grow stale.
EXCUSED: dict[str, str] = {}


def dead(trees: dict[str, ast.Module]) -> list[str]:
    read = set().union(*(reads(tree) for tree in trees.values()))
    return [
        f"{module}.{cls}.{field}"
        for module, tree in trees.items()
        for cls, fields in settings(tree).items()
        for field in fields
        if field not in read
    ]


def test_every_knob_is_read() -> None:
    assert [name for name in dead(modules()) if name not in EXCUSED] == []


def test_every_exception_is_still_one() -> None:
    assert [name for name in EXCUSED if name not in dead(modules())] == []


def test_settings_are_found() -> None:
    found = {cls for tree in modules().values() for cls in settings(tree)}
    assert {"PPOConfig", "A2CConfig", "ReinforceConfig", "NetConfig"} <= found


def test_a_dead_knob_is_noticed() -> None:
    text = """
@dataclass(frozen=True, kw_only=True)
class Config:
    used: int = 1
    checked: int = 1
    written: int = 1
    dead: int = 1
    def __post_init__(self):
        assert self.checked
def f(config, other):
    other.written = 2
    return config.used
"""
    assert dead({"m": ast.parse(text)}) == ["m.Config.checked", "m.Config.written", "m.Config.dead"]
