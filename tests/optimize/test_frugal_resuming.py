"""Laws from few evaluations: evaluations on disk, from an earlier run or from a lab, are used again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bowls import Counted, bowl, frugal, off

from shoal.core.errors import BadInput
from shoal.optimize import Problem, records
from shoal.optimize.search import even_points


def test_a_stopped_run_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        frugal(bowl(Counted(stop_at=24)), tmp_path / "run")
    file = tmp_path / "run" / "evaluations.jsonl"
    assert len(file.read_text().splitlines()) == 23
    with file.open("a") as half:
        half.write('{"x": 0.1, "c"')  # a kill in the middle of a line
    f = Counted()
    learnt = frugal(bowl(f), None, resume=tmp_path / "run")
    assert f.calls == 40 - 23, "eight of them to see whether f is the same"
    assert len(file.read_text().splitlines()) == 40 - 8 and learnt.summary["evaluations_of"]["checking"] == 8
    assert off(learnt.law) < 0.02
    other = Problem(lambda y: 0.0, knobs={"y": (-1, 1)}, kind="python")
    with pytest.raises(BadInput, match="is of another problem"):
        frugal(other, None, resume=tmp_path / "run")


@pytest.mark.parametrize("stop_at", [5, 24, 41])
def test_a_resumed_run_proposes_what_an_uninterrupted_one_does(tmp_path: Path, stop_at: int) -> None:
    fails = lambda x, c: x > 0.8  # noqa: E731
    frugal(bowl(Counted(fails)), tmp_path / "whole", budget=60, seed=3)
    with pytest.raises(KeyboardInterrupt):
        frugal(bowl(Counted(fails, stop_at=stop_at)), tmp_path / "run", budget=60, seed=3)
    f = Counted(fails)
    frugal(bowl(f), None, resume=tmp_path / "run", budget=60)  # the seed is the stopped run's
    whole, again = ((tmp_path / name / "evaluations.jsonl").read_text().splitlines() for name in ("whole", "run"))
    checks = min(8, stop_at - 1)
    assert f.calls == 60 - (stop_at - 1) and len(again) >= 60 - 8
    same = 56 - 2 * checks  # the last batch is shorter by the checks
    assert again[:same] == whole[:same]


@pytest.mark.parametrize("name", ["old.jsonl", "old.csv"])
def test_a_resumed_run_still_has_the_data_that_it_began_with(tmp_path: Path, name: str) -> None:
    old = tmp_path / name
    header = "x,c,value\n" if old.suffix == ".csv" else ""
    row = "{x},{c},{f}\n" if old.suffix == ".csv" else '{{"x": {x}, "c": {c}, "value": {f}}}\n'
    tried = [(x / 5, c / 4) for x in range(-5, 6) for c in range(-4, 5)]
    old.write_text(header + "".join(row.format(x=x, c=c, f=Counted()(x, c)) for x, c in tried))
    frugal(bowl(Counted()), tmp_path / "whole", data=old, seed=3)
    with pytest.raises(KeyboardInterrupt):
        frugal(bowl(Counted(stop_at=12)), tmp_path / "run", data=old, seed=3)
    old.unlink()
    resumed = frugal(bowl(Counted()), None, resume=tmp_path / "run")
    assert resumed.summary["warm"] == len(tried) + 11
    whole, again = ((tmp_path / of / "evaluations.jsonl").read_text().splitlines() for of in ("whole", "run"))
    assert again[:20] == whole[:20], "the same points are proposed"


def test_an_f_that_changed_is_noticed_when_its_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        frugal(bowl(Counted(stop_at=24)), tmp_path / "run")
    file = tmp_path / "run" / "evaluations.jsonl"
    before = file.read_text()

    class Other(Counted):
        def __call__(self, x: float, c: float) -> float:
            return super().__call__(x, c) + 1e-3 * (c > 0.5)  # in a part of the box, and by little

    f = Other()
    with pytest.raises(
        BadInput, match=r"bowl changed since this run was stopped: at x=\S+, c=(0\.\d+|1\.0) it was \S+ and is"
    ):
        frugal(bowl(f), None, resume=tmp_path / "run")
    assert f.calls == 8 and file.read_text() == before
    noisy = Counted(noise=0.05)
    learnt = frugal(bowl(noisy, noisy=True), None, resume=tmp_path / "run", budget=36)
    assert learnt.evaluations == noisy.calls == 36 - 23, "noise is no change"


def test_a_table_of_a_lab_is_a_warm_start(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{c:.4f},{(x - 0.5 * c - 0.3) ** 2:.12f},{x:.4f}" for x, c in rng.uniform(-1, 1, (40, 2)).round(4)]
    (tmp_path / "old.csv").write_text("\n".join(["c,value,x", *rows, "0.5,,-0.9"]))
    f = Counted()
    learnt = frugal(bowl(f), tmp_path / "run", budget=4, data=tmp_path / "old.csv")
    assert f.calls == 4 and learnt.summary["warm"] == 41 and learnt.dropped == 1
    assert off(learnt.law) < 0.05


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "x,value\n1,2\n", "line 2: column 'c' is missing. Expected: x, c, value"),
        ("a.csv", "x,c,d,value\n1,0,2,3\n", "unknown column 'd'"),
        ("a.csv", "x,c,value\n7,0,1\n", "x is 7: outside its bounds"),
        ("a.csv", "x,c,value\nlow,0,1\n", "line 2: x='low': it must be a number"),
        ("a.csv", "x,c,value\n1,0,cold\n", "value is 'cold': expected a number"),
        ("a.csv", "x,c,value\n1,0\n1\n", "number of values differs"),
        ("a.jsonl", '{"x": 1}\n', "line 1: column 'c' is missing"),
        ("a.jsonl", "[1]\n\n", "line 1: expected a JSON object"),
        ("a.txt", "x", "ends in .jsonl or .csv"),
        ("missing/a.csv", None, "cannot read data"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        frugal(bowl(Counted()), tmp_path / "run", data=tmp_path / name)


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    problem = Problem(
        lambda x, mode, n, c: 0.0,
        knobs={"x": (0.1, 5.0), "mode": ["a", 2, True], "n": range(3, 30, 3)},
        conditions={"c": (-40, 125)},
        kind="python",
    )
    points = even_points(problem, 20, np.random.default_rng(0))
    values = np.where(np.arange(20) % 5, np.arange(20.0), np.nan)
    record = records.Record(problem, tmp_path / "evaluations.jsonl")
    record.add(points, values)
    record.close()
    again, told, _ = records.read(problem, tmp_path / "evaluations.jsonl")
    np.testing.assert_allclose(again, points, atol=1e-12)
    np.testing.assert_array_equal(told, values)


def test_a_slow_f_is_noticed_in_a_resumed_run_that_evaluates_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frugal(bowl(Counted()), tmp_path / "run")
    monkeypatch.setattr("shoal.optimize.frugal.PATIENCE", 0.0)  # any f is too slow
    f = Counted()
    learnt = frugal(bowl(f), None, resume=tmp_path / "run", score=True)
    assert learnt.summary["regret"] is None and f.calls == 1, "one evaluation, to learn what one costs"
