"""Which trainings a study repeats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import RunFailed
from shoal.process.commands import Finished
from shoal.studies import finished
from shoal.studies.finished import finished_run, is_finished


def ending(out: Path, **summary: Any) -> Callable[[list[str]], Finished]:
    """A command that leaves this summary."""

    def run(words: list[str]) -> Finished:
        out.mkdir(parents=True)
        (out / "summary.json").write_text(json.dumps(summary))
        return Finished(0, "", "")

    return run


@pytest.mark.parametrize(
    ("summary", "counts"),
    [
        ({"ended": "budget", "stopped": False}, True),
        ({"ended": "solved", "stopped": False}, True),
        ({"stopped": False}, True),
        ({"ended": "stopped", "stopped": True}, False),
        ({"ended": "children", "stopped": False}, False),
    ],
)
def test_what_counts_as_finished(summary: dict[str, Any], counts: bool, tmp_path: Path) -> None:
    ending(tmp_path / "run", **summary)([])
    assert is_finished(tmp_path / "run") == counts
    assert not is_finished(tmp_path / "nothing")


def test_a_federation_that_lost_its_children_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(finished, "run_command", ending(out, ended="children", stopped=False))
    with pytest.raises(RunFailed, match="before its budget was spent"):
        finished_run(["federation", "local", "CartPole-v1"], {}, out)
    monkeypatch.setattr(finished, "run_command", ending(out, ended="budget", stopped=False))
    assert finished_run(["federation", "local", "CartPole-v1"], {}, out) == out


def test_a_stopped_training_stops_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "run_command", ending(tmp_path / "run", ended="stopped", stopped=True))
    with pytest.raises(KeyboardInterrupt):
        finished_run(["train", "CartPole-v1"], {}, tmp_path / "run")
