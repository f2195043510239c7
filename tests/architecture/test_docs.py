"""The documentation says what is true: links lead somewhere, commands and flags exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from source import ROOT


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check", ROOT / "docs" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_and_commands_hold(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 0, capsys.readouterr().err


def test_mistakes_are_noticed(check: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](#one-heading) [b](#no-heading) [c](nowhere.md)\n\n    shoal trian X\n")
    assert check.bad_links(page) == ["#no-heading: no such heading", "nowhere.md: no such file"]
    assert check.commands(page.read_text()) == ["shoal trian X"]
    assert check.bad_command("shoal trian X") == "no command 'trian'"
    assert check.bad_command("shoal train X --algo a2c --algo.clip 3") == "no option --algo.clip"
    assert check.bad_command("shoal train X --algo ppo --algo.clip 3") is None


def test_the_architecture_names_modules_that_exist() -> None:
    named = re.findall(r"[\w/]+\.py\b", (ROOT / "docs" / "architecture.md").read_text())
    places = (ROOT, ROOT / "src" / "shoal")
    assert named
    assert [name for name in named if not any((place / name).is_file() for place in places)] == []
