"""A training as its reports make it: what it keeps does not grow with them, and what it writes is of all of them."""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import launch
from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Episode, Fault, Report
from shoal.experiment import resolve
from shoal.launch.outcome import WINDOW
from shoal.launch.training import OLDEST, TOLD, Training
from shoal.learning.soundness import BAD_UPDATE
from shoal.process.lock import RunLock
from shoal.process.signals import StopRequest
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import RunFolder
from shoal.run.history import POINTS
from shoal.run.sinks import read_metrics

Events = Callable[[Any], Iterator[Any]]


class Told:
    """A session whose main role says what it is told to."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[Any]:
        return self._events

    def snapshots(self, exact: bool = True) -> dict[str, Any]:
        return {}

    def close(self) -> list[Fault]:
        return []

    def abort(self) -> None:
        return None


def training(out: Path, events: Events, **settings: Any) -> Training:
    plain = {"algo": {"name": "a2c", "unroll": 1}, "net": {"hidden": (4,)}, "backend": "jax", "runtime": "inline"}
    quiet = {"sinks": ["jsonl"], "checkpoint_every": 1e9, "steps": 10**9, "topology": "sequential"}
    plan = resolve("CartPole-v1", {**plain, **quiet, "actors": 1, "envs": 1, **settings})

    class Fake:
        provides: frozenset[str] = frozenset()
        needs_pure_env = False

        def __init__(self, config: Any) -> None:
            return None

        def start(self, program: Any, stopping: Any) -> Told:
            return Told(events(made.blueprint.initial_state()))

    plan = dataclasses.replace(plan, runtime_class=Fake)
    folder = RunFolder.create(out, "CartPole-v1", "a2c", "sequential")
    made = Training(plan, folder, quiet=True, say=lambda message: None)
    return made


def report(state: Any, version: int, lag: int = 0) -> Report:
    metrics = {"lag/versions": version % 3, "lag/max": 3.0, "loss/value": 0.5, "time/learn": 0.25, "time/wait": 0.0}
    ended = (Episode(float(version % 7), 10),)
    told = {"began_at": 1.0, "ended_at": 1.0 + version / 1000, "episodes": ended, "metrics": metrics, "state": state}
    return Report(version=version, env_steps=version, lags={lag * version: 1}, **told)


def reports(count: int, lag: int = 0) -> Events:
    return lambda state: (report(state, version, lag) for version in range(1, count + 1))


@pytest.mark.parametrize(("every", "lines"), [(0, 300), (1e6, 2)])
def test_lines_are_of_all_updates_however_few_they_are(every: float, lines: int, tmp_path: Path) -> None:
    outcome = training(tmp_path / "run", reports(300), metrics_every=every).run(StopRequest())
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == lines and rows[-1]["step"] == 300 == rows[-1]["speed/updates"]
    assert sum(row["episode/count"] for row in rows) == 300 == outcome.episodes
    total = sum(row["episode/count"] * row["episode/return"] for row in rows)
    assert total == pytest.approx(sum(version % 7 for version in range(1, 301)))
    assert sum(row["time/learn"] for row in rows) == pytest.approx(75)
    assert rows[-1]["loss/value"] == 0.5 and rows[-1]["lag/max"] == 3


def test_a_line_is_written_before_a_checkpoint(tmp_path: Path) -> None:
    """So that a resumed run loses none and repeats none."""
    training(tmp_path / "run", reports(5), metrics_every=1e6, checkpoint_every=0.0).run(StopRequest())
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]


def test_what_is_remembered_does_not_grow(tmp_path: Path) -> None:
    made = training(tmp_path / "run", reports(2000, lag=5), metrics_every=1e6)
    outcome = made.run(StopRequest())
    assert len(made._course.points) <= POINTS and len(outcome.recent) == WINDOW
    assert max(outcome.histogram) == OLDEST and sum(outcome.histogram.values()) == 2000
    assert outcome.lag_max == 3 and outcome.lag_sum / outcome.reports == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("count", [6_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_is_flat_over_many_updates(count: int, tmp_path: Path) -> None:
    """Measured after a third, when all that is bounded is full, and at the end."""
    held: list[int] = []

    def events(state: Any) -> Iterator[Any]:
        for version in range(1, count + 1):
            if version in (count // 3, count):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
            yield report(state, version)

    made = training(tmp_path / "run", events)
    tracemalloc.start()
    try:
        made.run(StopRequest())
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 200_000, f"{held} bytes: what is bounded may fill up, and a list would take megabytes"


def test_bad_updates_end_the_run_when_they_come_in_a_row(tmp_path: Path) -> None:
    def events(state: Any) -> Iterator[Any]:
        for version in range(1, 101):
            if version % 4 == 0:
                yield Fault(role="learner", kind=BAD_UPDATE, detail="the update was dropped: chance", in_a_row=1)
            yield report(state, version)
        for row in (1, 2, 3):
            yield Fault(role="learner", kind=BAD_UPDATE, detail="the update was dropped: a cause", in_a_row=row)
        raise AssertionError("it went on")

    made = training(tmp_path / "run", events, max_bad_updates=3, max_faults=0)
    with pytest.raises(RunFailed, match=r"^3 updates in a row failed \(--max-bad-updates 3\): a cause$"):
        made.run(StopRequest())
    assert made.outcome.bad_updates == 28 and made.outcome.faults == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert sum(row.get("fault/bad_updates", 0) for row in rows) == 28
    told = (tmp_path / "run" / "faults.log").read_text().count(BAD_UPDATE)
    assert TOLD <= told < 28, "not one by one for ever"
    assert Checkpoints(tmp_path / "run" / "checkpoints").load("last").meta["version"] == 100


def test_weights_are_saved_though_the_roles_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Told, exact: bool = True) -> dict[str, Any]:
        raise ValueError("no state to read")

    monkeypatch.setattr(Told, "snapshots", broken)
    outcome = training(tmp_path / "run", reports(5)).run(StopRequest())
    loaded = Checkpoints(tmp_path / "run" / "checkpoints").load("last")
    assert outcome.ended == "budget" and loaded.meta["version"] == 5 and loaded.meta["lasting"] == []
    assert "ValueError: no state to read" in (tmp_path / "run" / "faults.log").read_text()


@pytest.mark.parametrize(("count", "best"), [(WINDOW - 1, False), (WINDOW, True)])
def test_only_a_full_window_makes_a_best_checkpoint(count: int, best: bool, tmp_path: Path) -> None:
    training(tmp_path / "run", reports(count)).run(StopRequest())
    assert (tmp_path / "run" / "checkpoints" / "best.json").exists() == best
    assert Checkpoints(tmp_path / "run" / "checkpoints").load("last").meta["version"] == count


def test_who_comes_second_leaves_the_folder_to_its_holder(tmp_path: Path) -> None:
    """Both found the folder empty: the one that does not get the lock must not clear it away."""
    folder = RunFolder.create(tmp_path / "run", "env", "a2c", "sync")
    plan = resolve("CartPole-v1", {"backend": "jax", "algo": "a2c", "runtime": "inline"})
    with RunLock(folder.path):
        folder.config_path.write_text("{}")
        with pytest.raises(BadInput, match="one training at a time"):
            launch.run(plan, out=folder, quiet=True)
        assert folder.config_path.exists() and (folder.path / "run.lock").exists()


def test_who_holds_the_folder_and_is_refused_clears_it_away(tmp_path: Path) -> None:
    plan = resolve("CartPole-v1", {"backend": "jax", "algo": "a2c", "runtime": "inline"})
    with pytest.raises(BadInput, match="--from"):
        launch.run(plan, out=tmp_path / "run", weights={}, quiet=True)
    assert not (tmp_path / "run").exists()
