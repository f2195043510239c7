"""A run's folder: what a refused or stopped run keeps in it, how it goes on, and that no two runs share it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.optimize import Problem, learn, learn_to_optimize, records
from shoal.optimize.frugal import learn_frugally
from shoal.process.lock import RunLock, holder_of
from shoal.run.folder import read_json

SCORED: dict[Any, dict[str, Any]] = {learn: {"score": False}, learn_to_optimize: {}}


class Bowl:
    """f, whose best x is half of c. It counts its calls; call `at` gives `odd`, or raises it."""

    __name__ = "bowl"

    def __init__(self, at: int | None = None, odd: Any = KeyboardInterrupt) -> None:
        self.calls, self.at, self.odd = 0, at, odd

    def __call__(self, x: float, c: float) -> Any:
        self.calls += 1
        if self.calls != self.at:
            return (x - 0.5 * c) ** 2
        if self.odd is KeyboardInterrupt:
            raise KeyboardInterrupt
        return self.odd


def bowl(f: Any, **more: Any) -> Problem:
    return Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python", name="bowl", **more)


def stopped(out: Path, at: int = 24, **how: Any) -> Path:
    """The folder of a run of 40 evaluations that was interrupted in one of them."""
    with pytest.raises(KeyboardInterrupt):
        learn_frugally(bowl(Bowl(at)), **{"budget": 40, "score": False, "out": out, **how})
    return out


def lines(run: Path) -> list[str]:
    return (run / "evaluations.jsonl").read_text().splitlines()


@pytest.mark.parametrize("odd", [None, "low", np.zeros(3)], ids=["nothing", "a word", "an array"])
def test_a_refused_run_keeps_its_evaluations_and_can_be_resumed(tmp_path: Path, odd: Any) -> None:
    run = tmp_path / "run"
    said = r"one number for a point; 23 evaluations are kept, go on with --resume \S*run$"
    with pytest.raises(BadInput, match=said):
        learn_frugally(bowl(Bowl(24, odd)), budget=40, score=False, out=run)
    assert len(lines(run)) == 23 and not (run / "law.safetensors").exists()
    with pytest.raises(BadInput, match=r"one number for a point; 27 evaluations are kept"):
        learn_frugally(bowl(Bowl(8 + 5, odd)), score=False, resume=run)  # after eight checks
    f = Bowl()
    law = learn_frugally(bowl(f), score=False, resume=run).law
    assert f.calls == 40 - 27 and law(c=0.6)["x"] == pytest.approx(0.3, abs=0.05)


def test_a_run_refused_without_a_value_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"one number for a point$"):
        learn_frugally(bowl(Bowl(1, None)), budget=40, score=False, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_says_what_it_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.csv"
    old.write_text("x,c,value\n0,0,0\n")
    run = stopped(tmp_path / "run", data=old)
    assert capsys.readouterr().err == f"23 evaluations are kept, go on with --resume {run}\n", (
        "its own, not those of data"
    )


def test_a_resumed_run_has_the_budget_and_the_seed_of_the_stopped_one(tmp_path: Path) -> None:
    run, f = stopped(tmp_path / "run", seed=3), Bowl()
    learnt = learn_frugally(bowl(f), score=False, resume=run)
    assert f.calls == 40 - 23 and learnt.summary["budget"] == 40 and learnt.summary["seed"] == 3
    for resume in (learn, learn_to_optimize):
        resume(bowl(g := Bowl()), algo="auto", resume=stopped(tmp_path / resume.__name__), **SCORED[resume])
        assert g.calls == 40 - 23, resume


def test_another_budget_is_written_down_and_another_seed_refused(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", seed=3)
    machine = read_json(run / "config.json")["machine"]
    f = Bowl()
    with pytest.raises(BadInput, match="seed is 0: a resumed run keeps its own, 3"):
        learn_frugally(bowl(f), budget=50, seed=0, score=False, resume=run)
    with pytest.raises(BadInput, match="budget is 0: at least 1"):
        learn_frugally(bowl(f), budget=0, score=False, resume=run)
    assert f.calls == 0 and read_json(run / "config.json")["budget"] == 40
    learn_frugally(bowl(Bowl()), budget=30, seed=3, score=False, resume=run)
    assert read_json(run / "config.json")["budget"] == 30 and read_json(run / "config.json")["machine"] == machine
    learn_frugally(bowl(f), score=False, resume=run)
    assert f.calls == 30 - len(lines(run)), "what is left of 30, for the checks"


def test_one_run_at_a_time_has_the_folder(tmp_path: Path) -> None:
    run, held = tmp_path / "run", []

    class Watched(Bowl):
        def __call__(self, x: float, c: float) -> Any:
            held.append(holder_of(run) is not None)
            return super().__call__(x, c)

    with pytest.raises(KeyboardInterrupt):
        learn_frugally(bowl(Watched(at=10)), budget=20, score=False, out=run)
    learn_frugally(bowl(Watched()), budget=20, score=True, resume=run)
    assert all(held) and len(held) > 20 and holder_of(run) is None and not (run / "run.lock").exists()
    before, f = lines(run), Bowl()
    with RunLock(run), pytest.raises(BadInput, match="is in use by process"):
        learn_frugally(bowl(f), budget=30, score=False, resume=run)
    assert f.calls == 0 and lines(run) == before


def test_opening_a_record_cuts_half_a_line_and_nothing_else(tmp_path: Path) -> None:
    problem, file = bowl(Bowl()), tmp_path / "evaluations.jsonl"
    record = records.Record(problem, file)
    record.add(np.zeros((2, 2)), np.ones(2))
    record.close()
    whole, long_ago = file.read_bytes(), 10**18
    os.utime(file, ns=(long_ago, long_ago))
    records.Record(problem, file).close()
    assert file.read_bytes() == whole and file.stat().st_mtime_ns == long_ago, "it was not written again"
    file.write_bytes(whole + b'{"x": 0.1, "c"')
    records.Record(problem, file).close()
    assert file.read_bytes() == whole
