"""The source as syntax trees: what the tests of this folder look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"


@cache
def modules() -> dict[str, ast.Module]:
    """{dotted name: tree} of every module in the package; a package has the name of its folder."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        dotted = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        found[dotted] = ast.parse(path.read_text(), str(path))
    return found


def path_of(module: str) -> Path:
    plain = SRC / Path(*module.split("."))
    return plain / "__init__.py" if plain.is_dir() else plain.with_suffix(".py")


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def settings(tree: ast.AST) -> dict[str, list[str]]:
    """{class: fields} of the frozen keyword-only dataclasses: what a caller, a file or the command line fills in."""
    return {node.name: _fields(node) for node in classes(tree) if _is_settings(node)}


def _is_settings(node: ast.ClassDef) -> bool:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("dataclass"):
            true = {word.arg for word in decorator.keywords if ast.unparse(word.value) == "True"}
            if {"frozen", "kw_only"} <= true:
                return True
    return False


def _fields(node: ast.ClassDef) -> list[str]:
    targets = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def reads(tree: ast.AST) -> set[str]:
    """Names of attributes that are read, except where a class checks its own fields in `__post_init__`."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found
