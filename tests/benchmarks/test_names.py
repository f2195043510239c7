"""Benchmarks and examples import only what Shoal has: they run too rarely for a renamed function to be noticed otherwise."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).glob("**/*.py")
    if ".venv" not in str(path)
)


def has(module: str, name: str) -> bool:
    """Whether `from module import name` works."""
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_from_shoal_exist(script: Path) -> None:
    missing = [
        f"line {node.lineno}: {node.module}.{alias.name}"
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shoal"
        for alias in node.names
        if not has(str(node.module), alias.name)
    ]
    assert not missing
