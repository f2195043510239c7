"""Drivers: f is evaluated in several processes, and no proposal waits for the slowest of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.optimize import Problem, learn, spending
from shoal.optimize.drivers import Done, Drivers
from shoal.optimize.explorer import Explorer
from shoal.run.folder import RunFolder

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}  # of this very package


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


SCORED = """
import os, sys
from shoal.optimize import Problem, learn, spending

def f(x, c):
    if x > 0.5:
        os._exit(7)
    return (x - 0.5 * c) ** 2

problem = Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind=sys.argv[1], name="bowl")
out, resume = (None, sys.argv[2]) if len(sys.argv) > 3 else (sys.argv[2], None)
learn(problem, algo="surrogate", budget=24, drivers=2, out=out, resume=resume)
"""


RESUMED = ([], ["resume"])  # nothing is left to evaluate: only the reporting could call f


@pytest.mark.parametrize(
    ("kind", "rounds"), [("python", RESUMED[:1]), pytest.param("numpy", RESUMED, marks=pytest.mark.slow)]
)
def test_an_f_that_ends_drivers_is_not_called_in_the_main_process(tmp_path: Path, kind: str, rounds: Any) -> None:
    (tmp_path / "script.py").write_text(SCORED)
    words = [sys.executable, str(tmp_path / "script.py"), kind, str(tmp_path / "run")]
    for more in rounds:
        done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        told = json.loads((tmp_path / "run" / "summary.json").read_text())
        why = "bowl may end this process, as it has ended a driver: its process exited with code 7"
        assert told["regret"] is None and told["left_out"]["regret"] == why
        assert told["evaluations_of"]["reporting"] == 0 and (tmp_path / "run" / "law.safetensors").exists()


@pytest.mark.slow
def test_an_f_that_ends_every_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.optimize.drivers.CRASHES", 3)
    with pytest.raises(BadInput, match=r"bowl ended \d+ processes in a row: its process exited with code 7"):
        frugal(bowl(tmp_path / "calls", dies=-2.0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Stub:
    """A driver without a process: it gives what it is told to, one after another."""

    def __init__(self, *gives: Any) -> None:
        self.points, self.gives = [np.zeros(2)], list(gives)

    def look(self) -> list[Done]:
        return [self.gives.pop(0)] if self.gives and isinstance(self.gives[0], Done) else []

    def lost(self) -> Done | None:
        if not self.gives:
            return None
        if isinstance(self.gives[0], BadInput):
            raise self.gives[0]
        return self.gives.pop(0).done

    def close(self) -> None:
        pass


class Crash(NamedTuple):
    done: Done = Done(np.zeros(2), np.nan, np.zeros(0), 1, 0.1, "its process exited with code 7")


FINE = Done(np.ones(2), 3.0, np.zeros(0), 1, 0.1, None)


def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *gives: tuple[Any, ...]) -> Drivers:
    made = iter(gives)
    monkeypatch.setattr("shoal.optimize.drivers.Driver", lambda problem: Stub(*next(made)))
    return Drivers(bowl(tmp_path / "calls"), len(gives))


def test_what_has_ended_is_handed_back_before_f_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = stubs(monkeypatch, tmp_path, (BadInput("f returned None"),), (FINE, FINE))
    assert drivers.wait() == [FINE]
    with pytest.raises(BadInput, match="f returned None"):
        drivers.wait()


def test_one_crash_of_each_driver_is_no_reason_to_refuse_f(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = stubs(monkeypatch, tmp_path, *[(Crash(), FINE, Crash(), Crash())] * 8)
    assert len(drivers.wait()) == 8 and drivers.wait() == [FINE] * 8
    assert len(drivers.wait()) == len(drivers.wait()) == 8
    with pytest.raises(BadInput, match="bowl ended 16 processes in a row: its process exited with code 7"):
        drivers.wait()


def test_a_refused_f_keeps_what_its_drivers_evaluated(tmp_path: Path) -> None:
    note, run = tmp_path / "calls", tmp_path / "run"
    plain = bowl(note).devices[0]

    def f(x: float, c: float) -> Any:
        value = plain(x, c)
        return value if len(note.read_text().splitlines()) <= 12 else None

    problem = Problem(f, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, kind="python", name="bowl")
    with pytest.raises(BadInput, match=r"^bowl returned None: it must return one number for a point; ") as refused:
        frugal(problem, run)
    kept = len((run / "evaluations.jsonl").read_text().splitlines())
    assert 4 <= kept <= 12 and f"{kept} evaluations are kept, go on with --resume {run}" in str(refused.value)


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
    assert np.abs(second - first).max() > 1e-3, (
        "the surrogate's minimum is being evaluated: now it looks where it is unsure"
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [({"drivers": 0}, "drivers is 0: at least 1"), ({"drivers": 2}, "drivers is 2: sphere is compiled")],
)
def test_bad_numbers_of_drivers(tmp_path: Path, how: dict[str, int], said: str) -> None:
    sphere = Problem(lambda x, c: (x - c) ** 2, knobs={"x": (-1, 1)}, conditions={"c": (-1, 1)}, name="sphere")
    with pytest.raises(BadInput, match=said):
        learn(sphere, algo="surrogate", budget=20, out=tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()


class Queues:
    """Drivers without processes: they keep what they are given."""

    def __init__(self, count: int) -> None:
        self.count, self.given = count, list[int]()

    @property
    def idle(self) -> int:
        return self.count - len(self.given)

    def begin(self, points: np.ndarray) -> None:
        self.given.append(len(points))


@pytest.mark.parametrize(("points", "each", "given"), [(5, 64, [3, 2]), (1, 64, [1]), (9, 2, [2, 2]), (4, 1, [1, 1])])
def test_points_are_shared_out_among_the_drivers(points: int, each: int, given: list[int]) -> None:
    queues = Queues(2)
    left = spending._begun(queues, np.zeros((points, 2)), each)  # type: ignore[arg-type]
    assert queues.given == given and len(left) == points - sum(given)


@pytest.mark.parametrize(
    ("known", "each", "ahead"), [(0, 1, 20), (100, 1, 4), (100, 8, 18), (100, 128, 25), (20, 128, 5)]
)
def test_proposals_are_made_ahead_but_not_too_many(tmp_path: Path, known: int, each: int, ahead: int) -> None:
    """A quick f has a queue that lasts for as long as proposals take; a slow one has one point that waits for each driver."""
    problem = bowl(tmp_path / "calls")
    explorer = Explorer(problem)
    explorer.tell(np.random.default_rng(0).uniform(-1, 1, (known, 2)), np.ones(known))
    folder = RunFolder.create(tmp_path / "run", "law", "surrogate", "0")
    made = spending.Spending(problem, explorer, 400, folder, True, False, None, "", drivers=2)
    assert made._ahead(each) == ahead
