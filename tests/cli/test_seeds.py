"""`shoal train --seeds N`: what is averaged, and what an interrupt or a failure of one seed does to the others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shoal.api
from shoal.cli.main import main
from shoal.core.errors import RunFailed


def ended(eval_mean: float | None, return_mean: float, stopped: bool = False, interrupted: bool = False) -> Any:
    summary = {"eval_mean": eval_mean, "return_mean": return_mean, "solved_at_s": None, "stopped": stopped}
    return SimpleNamespace(summary=summary, interrupted=interrupted)


def several(monkeypatch: pytest.MonkeyPatch, results: list[Any], *words: str) -> tuple[int, list[int]]:
    """The exit code of a command whose runs end like that, and the seeds that were begun."""
    begun: list[int] = []

    def train(env: str, *, seed: int, **settings: Any) -> Any:
        begun.append(seed)
        result = results[len(begun) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(shoal.api, "train", train)
    with pytest.raises(SystemExit) as end:
        main(["train", "CartPole-v1", "--seeds", str(len(results)), "--json", "--quiet", *words])
    return int(end.value.code or 0), begun


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_interrupt_of_the_evaluation_begins_no_further_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [ended(200.0, 190.0), ended(None, 10.0, interrupted=True), ended(1.0, 1.0)]
    assert several(monkeypatch, results) == (0, [0, 1])
    assert told(capsys)["eval"]["mean"] == 200.0, "training returns are another measure"


def test_a_training_that_was_stopped_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert several(monkeypatch, [ended(None, 20.0), ended(None, -300.0, stopped=True)]) == (0, [0, 1])
    found = told(capsys)
    assert found["eval"] is None and found["return"]["mean"] == 20.0 and found["return"]["n"] == 1


def test_a_seed_that_fails_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [ended(200.0, 0.0), RunFailed("the reactor melted"), ended(100.0, 0.0)]
    assert several(monkeypatch, results) == (1, [0, 1, 2])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["eval"]["mean"] == 150.0 and found["failed"] == [1] and len(found["seeds"]) == 2
    assert err.splitlines() == ["shoal: seed 1: the reactor melted"]


def test_the_first_seed_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text("seed = 5\n")
    assert several(monkeypatch, [ended(1.0, 1.0)] * 2, "--config", str(file))[1] == [5, 6]
    assert several(monkeypatch, [ended(1.0, 1.0)] * 2, "--config", str(file), "--seed", "9")[1] == [9, 10]


def test_a_disk_that_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        shoal.api, "load", lambda path: (_ for _ in ()).throw(OSError(30, "Read-only file system", path))
    )
    with pytest.raises(SystemExit) as end:
        main(["play", "run"])
    assert end.value.code == 1 and capsys.readouterr().err == "shoal: [Errno 30] Read-only file system: 'run'\n"


def test_a_film_is_not_written_over_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.mp4").mkdir()
    with pytest.raises(SystemExit) as end:
        main(["play", "run", "--video", str(tmp_path / "d.mp4")])
    assert end.value.code == 2 and "that is a folder" in capsys.readouterr().err
