"""The replay of a run that is resumed where roles begin again: its rows are there, and priorities only together with them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.errors import BadInput
from shoal.core.program import Report
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.learning import replay_update as replay_update
from shoal.run.checkpoints import Checkpoints

T, B, CAPACITY = 8, 4, 200
DQN = {
    "name": "dqn",
    "unroll": T,
    "batch_size": 16,
    "warmup": 40,
    "capacity": CAPACITY,
    "every": 8,
    "replay": "prioritized",
}
DYNA = {"warmup": 20, "starts": 8, "horizon": 3, "model_hidden": (8,), "model_gradients": 2, "model_batch": 16}
QUIET: dict[str, Any] = {"eval_episodes": 0, "sinks": ("jsonl",), "quiet": True, "report": False}
SHARED = {"name": "shared_params", "consistency": "lock"}
CASES: dict[str, dict[str, Any]] = {
    "sync": {"topology": "sync", "algo": DQN},
    "actor_learner": {"topology": "actor_learner", "algo": DQN},
    "own replays": {"topology": {**SHARED, "replay": "local"}, "algo": DQN, "report_every": 1},
    "one replay": {"topology": {**SHARED, "replay": "global"}, "algo": DQN, "report_every": 1},
    "dyna": {"topology": "dyna", "algo": {**DQN, **DYNA, "name": "dyna_q"}},
}
ELSEWHERE = [
    pytest.param(case, "processes", id=f"{case} processes", marks=() if case == "own replays" else pytest.mark.slow)
    for case in ("actor_learner", "own replays", "dyna")
]


def train(out: Path, runtime: str, stop_at: int, **settings: Any) -> shoal.Run:
    common = {"backend": "jax", "actors": 2, "envs": B, "net": {"hidden": (8,)}, "runtime": runtime}
    stop = {"callbacks": [lambda report: report.env_steps >= stop_at]}
    return shoal.train("CartPole-v1", out=out, steps=10 * stop_at, **{**common, **stop, **settings, **QUIET})


def saved(run: shoal.Run) -> dict[str, np.ndarray]:
    arrays = Checkpoints(run.folder.checkpoints).load("last").arrays
    prefix = "part/replay/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def again(run: shoal.Run, stop_after: int = 3, **settings: Any) -> tuple[list[Report], shoal.Run]:
    reports: list[Report] = []

    def note(report: Report) -> bool:
        reports.append(report)
        return len(reports) == stop_after

    return reports, shoal.train(resume=run.path, callbacks=[note], **settings, **QUIET)


@pytest.fixture
def zeros(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of each draw in this process, the share of rows that nobody ever wrote."""
    shares: list[float] = []
    sample = replay_update.ReplayMemory.sample

    def noted(self: Any, *path: Any) -> Any:
        batch = sample(self, *path)
        obs = np.asarray(batch.drawn.rows.obs)
        shares.append(float((obs == 0).all(axis=-1).mean()))
        return batch

    monkeypatch.setattr(replay_update.ReplayMemory, "sample", noted)
    return shares


@pytest.mark.parametrize(("case", "runtime"), [*((case, "threads") for case in CASES), *ELSEWHERE])
def test_it_is_there_again(case: str, runtime: str, tmp_path: Path, zeros: list[float]) -> None:
    run = train(tmp_path / "run", runtime, stop_at=2 * CAPACITY, **CASES[case])
    held = saved(run)
    sizes = np.minimum(held["counters"][:, 1], held["slots"])
    assert sizes.max() > 0.7 * held["slots"], "of 400 steps, shared out as the workers were quick, those that are valid"
    assert "seen" in held or "replays" in case or "one" in case
    zeros.clear()
    reports, rest = again(run)
    rows = [report.metrics["replay/rows"] for report in reports if "replay/rows" in report.metrics]
    assert rows[0] >= sizes.min(), "from the first report on"
    if runtime == "threads" or case in ("actor_learner", "dyna"):
        assert zeros and max(zeros) == 0.0, "nothing is drawn that was never written"
    assert saved(rest)["counters"][:, 1].sum() > held["counters"][:, 1].sum(), "and it goes on from there"


@pytest.mark.parametrize("error", [RuntimeError, BadInput, KeyboardInterrupt])
def test_a_run_that_is_cut_off_keeps_it(error: type[BaseException], tmp_path: Path, capsys: Any) -> None:
    """Not between two updates: the actors' state is not saved then, the rows are."""

    def cut_off(report: Report) -> None:
        if report.env_steps >= 2 * CAPACITY:
            raise error("enough")

    with contextlib.suppress(error):
        train(tmp_path / "run", "inline", 3 * CAPACITY, **CASES["sync"], callbacks=[cut_off], checkpoint_every=1e9)
    run = shoal.load(tmp_path / "run")
    held = saved(run)
    assert held["counters"][0, 1] > 0.7 * CAPACITY and held["rows/obs"].any()
    assert not [name for name in Checkpoints(run.folder.checkpoints).load("last").arrays if "part/actor" in name]
    capsys.readouterr()
    reports, rest = again(run)
    assert "replay" not in capsys.readouterr().err and reports[0].metrics["replay/rows"] > 0.7 * CAPACITY
    assert saved(rest)["counters"][0, 1] > held["counters"][0, 1], "it goes on from there"


def test_another_number_of_workers_deals_the_rows_out_again(tmp_path: Path, zeros: list[float], capsys: Any) -> None:
    run = train(tmp_path / "run", "threads", stop_at=2 * CAPACITY, **CASES["own replays"])
    before = saved(run)
    zeros.clear()
    # An unroll is due 4 gradients and a push takes 5: a worker draws in its second turn, and 4 turns give one worker its second.
    reports, rest = again(run, stop_after=4, actors=3)
    assert "the replay has another layout: its newest rows are dealt out again" in capsys.readouterr().err
    held = saved(rest)
    assert before["counters"].shape == (2, 2) and held["counters"].shape == (3, 2)
    assert min(report.metrics["replay/rows"] for report in reports) > 0.6 * CAPACITY / 3
    assert zeros and max(zeros) == 0.0


def test_what_workers_kept_goes_on_inside_one_compiled_function(tmp_path: Path) -> None:
    uniform = {**DQN, "replay": "uniform"}
    run = train(tmp_path / "run", "inline", stop_at=2 * CAPACITY, **{**CASES["one replay"], "algo": uniform})
    reports, rest = again(run, runtime="fused", topology="sequential", actors=1)
    assert reports[0].metrics["replay/rows"] > 0.7 * CAPACITY and rest.summary["faults"] == 0


@pytest.mark.parametrize("change", [{"save_limit": 1e-9}, {"n_step": 3}])
def test_what_does_not_come_back_is_said(change: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    """A replay beyond the limit is not saved; it may be allowed later, or have been refused before."""
    algo = {**DQN, **change, "save_limit": change.get("save_limit", 1.0)}
    run = train(tmp_path / "run", "inline", stop_at=2 * CAPACITY, topology="sync", algo=algo)
    assert bool(saved(run)) == ("n_step" in change)
    capsys.readouterr()
    reports, _ = again(run, algo={"save_limit": 1.0})
    said = "the checkpoint holds no replay: it fills again" in capsys.readouterr().err
    assert said == ("save_limit" in change) and (reports[0].metrics["replay/rows"] < 100) == said


def test_priorities_without_rows_are_left_out(tmp_path: Path, capsys: Any) -> None:
    """As checkpoints were once written: the sampler must not draw from rows that are not there."""
    run = train(tmp_path / "run", "inline", stop_at=2 * CAPACITY, **CASES["dyna"])
    loaded = Checkpoints(run.folder.checkpoints).load("last")
    kept = {n: a for n, a in loaded.arrays.items() if not n.startswith(("part/replay/rows", "part/replay/counters"))}
    stored = {k: v for k, v in run.folder.read_config().items() if k not in ("machine", "spec", "env")}
    said: list[str] = []
    blueprint = make_blueprint(resolve("CartPole-v1", stored), loaded._replace(arrays=kept), None, said.append)
    assert "replay" not in blueprint.snapshots and said == ["the checkpoint holds no replay: it fills again"]
