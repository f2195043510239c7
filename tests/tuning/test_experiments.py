"""The published schedule and completion rates, small: rows of the right shape, and the published formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.studies.reproduce import read_reference, read_spec
from shoal.tuning.experiments import RUNNERS

ROOT = Path(__file__).parents[2] / "experiments"


def run(name: str, runner: str, tmp_path: Path, **changes: object) -> dict[str, list[dict[str, dict[str, object]]]]:
    spec = read_spec(ROOT / name)
    assert spec["runner"] == f"tuning:{runner}"
    return RUNNERS[runner]({**spec["all"], **spec["quick"], **changes}, tmp_path, lambda *words: None)


def test_every_table_of_the_schedule_has_its_rows(tmp_path: Path) -> None:
    found = run("hypertrick-schedule", "schedule", tmp_path, seeds=2, many_nodes=12, methods=["sh", "hypertrick"])
    for table in read_spec(ROOT / "hypertrick-schedule")["tables"]:
        rows = [row for row in found["rows"] if row["keys"]["case"] == table["where"]["case"]]
        assert [row["keys"]["method"] for row in rows] == ["sh", "hypertrick r=0.25", "hypertrick r=0.5"]
        assert set(table["columns"]) - {"shorter"} <= set(rows[0]["values"])
    assert found["rows"][1]["values"]["shorter"] in (["yes"], ["no"])
    assert [figure["kind"] for figure in found["figures"]] == ["gantt", "curves"]
    assert len(found["notes"]) == 2 * 5


def test_the_published_completion_rates_come_out(tmp_path: Path) -> None:
    found = run("hypertrick-completion", "completion", tmp_path, trials=100)
    published = read_reference(ROOT / "hypertrick-completion" / "reference.csv")
    games = {row["keys"]["game"]: row["values"] for row in found["rows"] if "game" in row["keys"]}
    assert list(games) == list(published)
    for game, told in published.items():
        assert games[game]["expected"] == pytest.approx([told["expected"]], abs=0.01)
        assert games[game]["printed_floor"] == pytest.approx([told["printed_floor"]], abs=0.01)
    assert games["Pong"]["floor"] == pytest.approx([47.3], abs=0.05)
    [band, *_] = [row for row in found["rows"] if "method" in row["keys"]]
    assert band["values"]["trials"] == [49] and band["values"]["alpha"] == pytest.approx([27.0], abs=0.1)
