"""Drivers: f is evaluated in several processes, and no proposal waits for the slowest of them."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.optimize import Problem, learn
from shoal.optimize.drivers import Drivers
from shoal.optimize.explorer import Explorer


def bowl(note: Path, *, slow: float = 0.0, dies: float = 2.0) -> Problem:
    """The best x is half of c. f notes its calls in a file, because each process has an f of its own."""

    def f(x: float, c: float) -> float:
        with note.open("a") as file:
            file.write(f"{os.getpid()} {x!r} {c!r}\n")
        if x > dies:
            os._exit(7)
        if c > 0.9:
            time.sleep(slow)
        return (x - 0.5 * c) ** 2

    return Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python", name="bowl")


def calls(note: Path) -> list[list[str]]:
    return [line.split() for line in note.read_text().splitlines()]


def frugal(problem: Problem, out: Path | None, **how: Any) -> Any:
    return learn(problem, algo="surrogate", score=False, out=out, **{"budget": 60, "drivers": 2, **how})


def off(law: Any) -> float:
    c = np.linspace(-0.9, 0.9, 7)
    return float(np.abs(law(c=c)["x"] - 0.5 * c).max())


def test_two_processes_spend_the_budget_and_no_more(tmp_path: Path) -> None:
    note = tmp_path / "calls"
    learnt = frugal(bowl(note), tmp_path / "run")
    called = calls(note)
    assert len(called) == learnt.evaluations == 60 and len({pid for pid, *_ in called} - {str(os.getpid())}) == 2
    assert len({tuple(rest) for _, *rest in called}) == 60, "no point twice"
    assert len((tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()) == 60
    assert off(learnt.law) < 0.05 and learnt.summary["drivers"] == 2


def test_a_slow_evaluation_delays_no_other(tmp_path: Path) -> None:
    """While one driver sleeps, the other goes on."""
    problem = bowl(tmp_path / "calls", slow=2.0)
    slow, quick = problem.normalise(x=0.0, c=0.95), problem.normalise(x=0.0, c=0.1)
    with closing(Drivers(problem, 2)) as drivers:
        drivers.begin(quick[None])
        drivers.begin(quick[None])
        while drivers.idle < 2:
            drivers.wait()  # both have started
        drivers.begin(slow[None])
        for i in range(5):
            drivers.begin(problem.normalise(x=0.1 * i, c=0.1)[None])
            (done,) = drivers.wait()
            assert done.value == pytest.approx((0.1 * i - 0.05) ** 2) and done.evaluations == 1
        assert len(drivers.points) == 1, "the slow one is not done"
        (last,) = drivers.wait()
    assert last.seconds >= 2.0 and np.array_equal(last.point, slow)


def test_an_f_that_ends_its_process_has_failed_there(tmp_path: Path) -> None:
    note = tmp_path / "calls"
    learnt = frugal(bowl(note, dies=0.9), tmp_path / "run")
    assert 0 < learnt.dropped < 20 and len(calls(note)) <= 60 and off(learnt.law) < 0.05


@pytest.mark.slow
def test_an_f_that_ends_every_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.optimize.drivers.CRASHES", 3)
    with pytest.raises(BadInput, match=r"bowl ended \d+ processes in a row: its process exited with code 7"):
        frugal(bowl(tmp_path / "calls", dies=-2.0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_all_that_was_evaluated(tmp_path: Path) -> None:
    note = tmp_path / "calls"
    frugal(bowl(note), tmp_path / "run", budget=30)
    learnt = frugal(bowl(note), None, resume=tmp_path / "run", budget=60)
    assert len(calls(note)) == 60 and learnt.summary["warm"] == 30
    assert learnt.summary["evaluations_of"]["checking"] == 8


@pytest.mark.slow
def test_every_point_of_a_finite_problem_is_tried_once(tmp_path: Path) -> None:
    note = tmp_path / "calls"

    def f(mode: str, taps: int) -> float:
        with note.open("a") as file:
            file.write(f"{mode} {taps}\n")
        return taps + (mode == "b")

    problem = Problem(f, knobs={"mode": ["a", "b", "c"], "taps": range(4)}, kind="python", name="finite")
    law = frugal(problem, tmp_path / "run", drivers=3).law
    tried = calls(note)
    assert len(tried) == len({tuple(row) for row in tried}) == 12 and law()["taps"] == 0


def test_proposals_lie_apart_from_what_is_pending() -> None:
    problem = Problem(lambda x, y: x**2 + y**2, knobs={"x": (-1, 1), "y": (-1, 1)}, kind="python", name="plain")
    explorer = Explorer(problem, 0)
    points = explorer.design(12)
    explorer.tell(points, (points**2).sum(1))
    first = explorer.ask(1)
    before = explorer.surrogate
    second = explorer.ask(1, pending=first)
    assert explorer.surrogate is before, "it believes only while it is asked"
    assert np.abs(second - first).max() > 1e-6


@pytest.mark.parametrize(
    ("how", "said"),
    [({"drivers": 0}, "drivers is 0: at least 1"), ({"drivers": 2}, "drivers is 2: sphere is compiled")],
)
def test_bad_numbers_of_drivers(tmp_path: Path, how: dict[str, int], said: str) -> None:
    sphere = Problem(lambda x, c: (x - c) ** 2, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, name="sphere")
    with pytest.raises(BadInput, match=said):
        learn(sphere, algo="surrogate", budget=20, out=tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()
