"""A run can be driven: one contract over topologies and runtimes.

Weights that a driver hands in at update n act from update n+1, or n+2 with overlap; handing back what was reported changes
nothing, by hash; a run that is stopped or paused says so, and its checkpoint holds the weights handed in.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from driven_env import Alternating, Dials, Levers, pulling

import shoal
from shoal import launch
from shoal.core.errors import BadInput
from shoal.core.program import Driver, Reply, Report
from shoal.core.weights import params_hash, to_vector
from shoal.experiment import resolve

UPDATES, T, B = 6, 4, 2
slow = pytest.mark.slow
A2C = {"name": "a2c", "unroll": T}
PPO = {"name": "ppo", "unroll": T, "batch_size": 8, "epochs": 2}
DQN = {"name": "dqn", "unroll": T, "batch_size": 8, "warmup": 8, "capacity": 64, "target_every": 4}
DYNA = {
    "name": "dyna_q",
    "unroll": T,
    "batch_size": 8,
    "warmup": 8,
    "capacity": 64,
    "starts": 4,
    "horizon": 2,
    "model_hidden": (4,),
}
OFF_POLICY = {"unroll": T, "batch_size": 8, "warmup": 8, "capacity": 64, "updates_per_step": 0.25}
STILL = {"learning_rate": 1e-30}  # gradients move nothing: weights change by the driver's hand alone
GREEDY = {"epsilon_start": 0.0, "epsilon_end": 0.0}
SYNC, OVERLAP = {"name": "sync", "overlap": False}, {"name": "sync", "overlap": True}
LOCKSTEP = {"name": "actor_learner", "max_lag": 0}
GA3C = {"name": "ga3c", "predictors": 1, "trainers": 1, "adjust": False}


def shared(consistency: str) -> dict[str, Any]:
    return {"name": "shared_params", "consistency": consistency}


def run(
    topology: Any, runtime: str, driver: Driver | None, *, algo: Any = A2C, env: Any = Levers, **settings: Any
) -> launch.Result:
    actors = settings.pop("actors", 1 if runtime == "fused" else 2)
    plain = {"net": {"hidden": (4,)}, "envs": B, "actors": actors, "sinks": ["jsonl"], "report_every": 1}
    plan = resolve(
        env,
        {
            "algo": algo,
            "topology": topology,
            "runtime": runtime,
            "steps": UPDATES * T * B * actors,
            **plain,
            **settings,
        },
    )
    with TemporaryDirectory() as folder:
        return launch.run(plan, out=Path(folder) / "run", driver=driver, quiet=True)


IN_STEP: list[Any] = [  # (topology, runtime, lag, settings)
    ("sequential", "inline", 0, {}),
    (SYNC, "inline", 0, {}),
    (SYNC, "threads", 0, {}),
    (SYNC, "processes", 0, {}),
    (OVERLAP, "inline", 1, {}),
    (OVERLAP, "threads", 1, {}),
    pytest.param(OVERLAP, "processes", 1, {}, marks=slow),
    (SYNC, "inline", 0, {"algo": {**DQN, **GREEDY, **STILL}}),
    ("sequential", "inline", 0, {"algo": {"name": "td3", **OFF_POLICY, **STILL}, "env": Dials}),
    *(
        pytest.param(SYNC, "inline", 0, {"algo": {"name": name, **OFF_POLICY, **STILL}, "env": Dials}, marks=slow)
        for name in ("ddpg", "sac")
    ),
    (LOCKSTEP, "inline", 0, {}),
    (LOCKSTEP, "threads", 0, {}),
    pytest.param(LOCKSTEP, "processes", 0, {}, marks=slow),
    (LOCKSTEP, "inline", 0, {"learners": 2}),
    (LOCKSTEP, "threads", 0, {"learners": 2}),
    pytest.param(LOCKSTEP, "processes", 0, {"learners": 2}, marks=slow),
    (shared("lock"), "inline", 0, {"actors": 1}),
    (shared("hogwild"), "inline", 0, {"actors": 1}),
    (shared("sharded"), "inline", 0, {"actors": 1}),
    (shared("gossip"), "inline", 0, {"actors": 1}),
]


@pytest.mark.parametrize(("topology", "runtime", "lag", "settings"), IN_STEP)
def test_weights_handed_in_act_from_the_next_update(
    topology: Any, runtime: str, lag: int, settings: dict[str, Any]
) -> None:
    driver = Alternating()
    result = run(topology, runtime, driver, **{"algo": {**A2C, **STILL}, **settings})
    last = max(driver.returns)
    assert last == result.outcome.version == UPDATES
    # Elsewhere an actor tells of its episodes beside its unrolls, perhaps after the learner has reported.
    beside = topology is LOCKSTEP and runtime != "inline"
    for version in range(2 + lag, last + 1) if not beside else ():
        acted = version - 1 - lag
        assert driver.returns[version] == {float(acted % 2)}, f"update {version} is of what version {acted} did"
    for version in range(1, last):
        np.testing.assert_array_equal(driver.reported[version + 1], driver.handed[version])
    assert result.state is not None and params_hash(result.state.params) == params_hash(driver.handed[last])


OUT_OF_STEP: list[Any] = [  # (topology, runtime, settings)
    pytest.param(LOCKSTEP, "threads", {"learners": 2}, marks=slow),
    ("actor_learner", "inline", {}),
    ("actor_learner", "threads", {"learners": 2}),
    pytest.param("actor_learner", "processes", {}, marks=slow),
    ({"name": "actor_learner", "average_every": 2}, "inline", {"learners": 2}),
    pytest.param("seed", "inline", {}, marks=slow),
    ("seed", "threads", {}),
    pytest.param("seed", "processes", {}, marks=slow),
    pytest.param(GA3C, "inline", {}, marks=slow),
    (GA3C, "threads", {}),
    pytest.param({**GA3C, "queue": 4}, "processes", {}, marks=slow),  # agents may not be far ahead of the trainers
    (shared("lock"), "threads", {}),
    pytest.param(shared("hogwild"), "processes", {}, marks=slow),
    (shared("sharded"), "threads", {}),
    (shared("gossip"), "inline", {}),
    pytest.param(shared("gossip"), "threads", {}, marks=slow),
    *(
        pytest.param("dyna", runtime, {"algo": {**DYNA, **GREEDY, **STILL}}, marks=slow)
        for runtime in ("inline", "threads", "processes")
    ),
]


@pytest.mark.parametrize(("topology", "runtime", "settings"), OUT_OF_STEP)
def test_weights_handed_in_act_soon_where_nothing_is_in_step(
    topology: Any, runtime: str, settings: dict[str, Any]
) -> None:
    """From the first report on the policy pulls lever 1, and before long there is nothing else to be seen."""
    returns: list[set[float]] = []

    def driver(report: Report) -> Reply:
        returns.append({episode.ret for episode in report.episodes})
        return Reply(weights=pulling(1, report.state.params))

    long = {"steps": 40 * T * B * 2, "algo": {**A2C, **STILL}, **settings}
    run(topology, runtime, driver, **long)
    tail = [ret for one in returns[len(returns) // 2 :] for ret in one]
    assert tail and set(tail) == {1.0}


CALM = {**PPO, "normalise_obs": True}
SAME: list[Any] = [  # (topology, runtime, settings)
    ("sequential", "inline", {"algo": CALM}),
    ("sequential", "fused", {"algo": CALM, "env": "CartPole-v1", "report_every": 2}),
    (OVERLAP, "inline", {"algo": CALM}),
    (OVERLAP, "threads", {"algo": CALM}),
    pytest.param(SYNC, "processes", {"algo": CALM}, marks=slow),
    (OVERLAP, "inline", {"algo": {**DQN, "normalise_obs": True}}),
    (LOCKSTEP, "threads", {"algo": CALM, "learners": 2}),
    ("actor_learner", "inline", {"algo": CALM}),
    pytest.param({"name": "actor_learner", "average_every": 2}, "inline", {"algo": CALM, "learners": 2}, marks=slow),
    ("seed", "inline", {"algo": CALM}),
    (GA3C, "inline", {"algo": {**A2C, "normalise_obs": True}}),
    ("dyna", "inline", {"algo": DYNA}),
    *((shared(name), "inline", {"algo": A2C}) for name in ("hogwild", "lock")),
    *(pytest.param(shared(name), "inline", {"algo": A2C}, marks=slow) for name in ("sharded", "gossip")),
    (shared("hogwild"), "inline", {"algo": DQN}),
    pytest.param(
        shared("hogwild"), "inline", {"algo": {"name": "sac", **OFF_POLICY}, "env": Dials, "actors": 1}, marks=slow
    ),
    pytest.param(OVERLAP, "inline", {"algo": {"name": "td3", **OFF_POLICY}, "env": Dials}, marks=slow),
]


@pytest.mark.parametrize(("topology", "runtime", "settings"), SAME)
def test_handing_back_what_was_reported_changes_nothing(topology: Any, runtime: str, settings: dict[str, Any]) -> None:
    def back(report: Report) -> Reply:
        return Reply(weights=to_vector(report.state.params))

    silent, handed = (run(topology, runtime, driver, **settings).summary for driver in (lambda report: None, back))
    assert handed["params_sha256"] == silent["params_sha256"]
    assert handed["updates"] == silent["updates"] and handed["ended"] == "budget"


@pytest.mark.parametrize(
    ("topology", "runtime"), [("sequential", "inline"), (OVERLAP, "threads"), (LOCKSTEP, "inline")]
)
def test_a_driver_that_says_nothing_changes_nothing(topology: Any, runtime: str) -> None:
    """Neither does the order in which a driven run publishes and reports."""
    hashes = {
        run(topology, runtime, driver, algo=PPO).summary["params_sha256"] for driver in (None, lambda report: None)
    }
    assert len(hashes) == 1


def test_fused_takes_weights_at_its_next_call() -> None:
    """Always the same action: the pole falls within a few steps, in every episode that begins afterwards."""
    lengths: dict[int, tuple[int, ...]] = {}

    def driver(report: Report) -> Reply:
        lengths[report.version] = tuple(episode.length for episode in report.episodes)
        return Reply(weights=pulling(1, report.state.params))

    run(
        "sequential",
        "fused",
        driver,
        algo={**A2C, "unroll": 16, **STILL},
        env="CartPole-v1",
        steps=40 * 16 * B,
        report_every=4,
    )
    assert set(range(4, 41, 4)) <= set(lengths), "calls end where a report is due"
    later = [length for version, ended in lengths.items() if version > 12 for length in ended]
    assert later and all(8 <= length <= 11 for length in later)


ENDED: list[Any] = [  # (topology, runtime, why, settings)
    ("sequential", "inline", "paused", {}),
    ("sequential", "inline", "pruned", {}),
    (SYNC, "threads", "paused", {}),
    pytest.param(SYNC, "threads", "pruned", {}, marks=slow),
    *(
        pytest.param(topology, runtime, why, settings, marks=slow)
        for topology, runtime, settings in (
            ("sequential", "fused", {"env": "CartPole-v1"}),
            ("actor_learner", "threads", {"learners": 2}),
            (shared("lock"), "threads", {}),
            (GA3C, "threads", {}),
            ("seed", "threads", {}),
        )
        for why in ("paused", "pruned")
    ),
]


@pytest.mark.parametrize(("topology", "runtime", "why", "settings"), ENDED)
def test_a_driver_ends_a_run_with_the_weights_it_hands_in(
    topology: Any, runtime: str, why: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The checkpoint holds them: a run that is resumed from it, whose gradients move nothing, ends with them too."""
    handed: dict[int, np.ndarray] = {}

    def driver(report: Report) -> Reply | None:
        if report.version < 3:
            return None
        handed[report.version] = pulling(0, report.state.params)
        return Reply(weights=handed[report.version], stop=True, why=why)

    settings = {"algo": {**A2C, **STILL}, "net": {"hidden": (4,)}, "envs": B, "report_every": 1, **settings}
    env, actors = settings.pop("env", Levers), 1 if topology == "sequential" else 2
    settings |= {"topology": topology, "runtime": runtime, "actors": actors, "steps": 100 * T * B * actors}
    common: dict[str, Any] = {"quiet": True, "report": False, "eval_episodes": 5}
    run = shoal.train(env, out=tmp_path / "run", driver=driver, **settings, **common)
    (version, weights), summary = next(iter(handed.items())), run.summary
    assert summary["ended"] == why and summary["stopped"] and summary["updates"] == version and len(handed) == 1
    assert summary["eval_mean"] is None, "what is not finished is not judged"
    assert summary["params_sha256"] == run.params_hash == params_hash(weights)
    rest = shoal.train(env, resume=run.path, **common)
    assert rest.summary["ended"] == "budget" and rest.summary["updates"] > version
    assert rest.params_hash == params_hash(weights)


def test_a_run_says_that_it_was_solved() -> None:
    def driver(report: Report) -> Reply:
        return Reply(weights=pulling(1, report.state.params))

    result = run("sequential", "inline", driver, until_return=1.0, steps=10**6)
    assert result.ended == "solved" and not result.outcome.stopped and result.summary["solved_at_s"] is not None


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (np.zeros(3, np.float32), r"weights of shape \(3,\) were handed in: this run's have shape"),
        (np.float32("nan"), "the weights that were handed in are not all finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Any, told: str) -> None:
    def driver(report: Report) -> Reply:
        fitting = weights if weights.ndim else np.full_like(to_vector(report.state.params), weights)
        return Reply(weights=fitting)

    with pytest.raises(BadInput, match=told):
        run("sequential", "inline", driver)
