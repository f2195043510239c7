"""Imports run one way, every outside package has one owner, and looking at the package costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from source import ROOT, SRC

HEAVY = ("jax", "optax", "numpy", "gymnasium", "envpool", "matplotlib", "rich", "tensorboardX", "msgspec")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=ROOT, env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"}, text=True, capture_output=True
    )


def test_import_rules_hold() -> None:
    done = run(
        sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache", "--no-logo"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("statement", ["import shoal", "import shoal.cli.main"])
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str) -> None:
    done = run(sys.executable, "-c", f"{statement}, sys; print(*(m for m in {HEAVY} if m in sys.modules))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_help_is_answered_without_anything_heavy() -> None:
    """What `shoal --help` imports decides how long it takes; the time itself is measured in benchmarks/."""
    code = f"""
import atexit, sys
atexit.register(lambda: print(*(m for m in {HEAVY} if m in sys.modules), file=sys.stderr))
from shoal.cli.main import main
main(["--help"])
"""
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0
    assert "train" in done.stdout
    assert done.stderr.split() == []
