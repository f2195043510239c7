"""How the source reads: documented, of readable size, without side effects, without the names that say nothing."""

from __future__ import annotations

import ast
import re

import pytest
from source import ROOT, classes, modules, path_of, settings

MODULES = list(modules())
PACKAGES = [name for name in MODULES if path_of(name).name == "__init__.py" and name != "shoal"]
LINES = 400
QUESTIONS = {
    "what lives here": r".",
    "what may I import": r"[Mm]ay\s+import",
    "what may I change": r"([Yy]ou\s+may\s+change|[Tt]o\s+add\s+one)",
    "where else might you be looking": r"[Ll]ooking\s+for",
}
# Names that would become drawers for anything.
DRAWERS = re.compile(r"(^|_)(utils?|common|helpers?|misc)(_|$)|Managers?$")
# Where a registry lives: {module: its name}. Adding to one is a line, never a decorator or a call at import.
REGISTRIES = {
    "shoal.algos": "ALGOS",
    "shoal.topologies": "TOPOLOGIES",
    "shoal.runtimes": "RUNTIMES",
    "shoal.run.sinks": "SINKS",
    "shoal.tuned": "TUNED",
    "shoal.federation.rules": "RULES",
}


def test_every_module_says_what_it_is() -> None:
    assert [name for name, tree in modules().items() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_package_answers_a_newcomers_questions(question: str) -> None:
    silent = [p for p in PACKAGES if not re.search(QUESTIONS[question], ast.get_docstring(modules()[p]) or "")]
    assert silent == [], f"package docstrings that do not say: {question}?"


def test_public_names_are_documented() -> None:
    """Of its public names a module may leave one to its own docstring; settings are explained field by field."""
    silent = []
    for module, tree in modules().items():
        public = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and not n.name.startswith("_")]
        long = [n for n in public if (n.end_lineno or n.lineno) - n.lineno > 8 and not n.name.endswith("Config")]
        names = [f"{module}.{node.name}" for node in long if not ast.get_docstring(node) and not _has_about(node)]
        silent += names if len(names) > 1 else []
    assert silent == []


def _has_about(node: ast.AST) -> bool:
    """`about = "..."` is what the command line shows of a choice: it documents the class as well."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return any(isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "about" for item in body)


def test_modules_stay_readable() -> None:
    assert [name for name in MODULES if len(path_of(name).read_text().splitlines()) > LINES] == []


def test_no_name_is_a_drawer() -> None:
    names = {name.rpartition(".")[2] for name in MODULES}
    names |= {node.name for tree in modules().values() for node in classes(tree)}
    assert [name for name in names if DRAWERS.search(name)] == []


@pytest.mark.parametrize("name", ["utils", "env_utils", "helpers", "common", "BufferManager"])
def test_a_drawer_is_noticed(name: str) -> None:
    assert DRAWERS.search(name)


def test_importing_has_no_side_effects() -> None:
    """At the top of a module things are named, never done: no call stands alone, nothing is put into a container."""
    done = []
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
                done.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.Assign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                inside = [target for target in targets if isinstance(target, ast.Subscript | ast.Attribute)]
                done += [f"{module}:{node.lineno}: {ast.unparse(target)} = ..." for target in inside]
    assert done == []


@pytest.mark.parametrize(("module", "name"), REGISTRIES.items())
def test_registries_are_dict_literals(module: str, name: str) -> None:
    values = [
        node.value
        for node in modules()[module].body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and name in [ast.unparse(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    ]
    assert [type(value) for value in values] == [ast.Dict], f"{module}.{name} is not one dict literal"


def test_nobody_sleeps_outside_the_runtimes() -> None:
    """A role waits on a port; a sleep is a condition that nobody wrote down."""
    slept = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if not module.startswith("shoal.runtimes")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
    ]
    assert slept == []


def test_no_error_is_swallowed() -> None:
    """`except Exception: pass` and its kin hide the reason for what happens next."""
    hidden = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
                if broad and all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body):
                    hidden.append(f"{module}:{node.lineno}")
    assert hidden == []


def test_settings_of_the_command_line_explain_themselves() -> None:
    """Below each field of a *Config stands a docstring: it is the help text."""
    silent = []
    for tree in modules().values():
        known = settings(tree)
        for node in classes(tree):
            if node.name in known and node.name.endswith("Config"):
                for item, after in zip(node.body, [*node.body[1:], None], strict=True):
                    said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    if isinstance(item, ast.AnnAssign) and not said:
                        silent.append(f"{node.name}.{ast.unparse(item.target)}")
    assert silent == []


# Words of sentences that have to be read twice: name the role, the process or the user instead.
UNPLAIN = re.compile(
    r"\b(whoever|whomever|nobody|everybody|somebody|anew|so many|of whom|(?<!each )of which)\b", re.IGNORECASE
)


def test_words_are_plain() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(path_of(name) for name in MODULES)]
    lines = [(path, number, line) for path in pages for number, line in enumerate(path.read_text().splitlines(), 1)]
    assert [f"{path}:{number}: {line.strip()}" for path, number, line in lines if UNPLAIN.search(line)] == []


def test_an_unplain_word_is_noticed() -> None:
    assert UNPLAIN.search("Nobody waits here.") and not UNPLAIN.search("No role waits here, and many run.")
    assert UNPLAIN.search("two roles, of which one acts") and not UNPLAIN.search("two roles, each of which acts")
