"""Children that train: ordinary runs that exchange weights, on several topologies and runtimes, with several algorithms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import A2C, DQN, ENVS, PPO, RUN, UNROLL, parent_of, train

import shoal
from shoal import launch
from shoal.core.blueprint import named_leaves
from shoal.core.errors import BadInput
from shoal.experiment import resolve
from shoal.federation import Parent
from shoal.federation.child import first_leaves, planned
from shoal.federation.courier import Exchanged
from shoal.federation.hub import Hub
from shoal.federation.ledger import updates_of
from shoal.federation.settings import FederationConfig
from shoal.federation.state import RESERVED
from shoal.launch.compose import make_blueprint

STEPS = 6 * UNROLL * ENVS
SAME = {"alpha": 1.0, "beta": 1.0}


@pytest.mark.parametrize(
    ("algo", "own"),
    [
        (A2C, {"runtime": "inline"}),
        (A2C, {"runtime": "threads"}),
        (PPO, {"runtime": "inline"}),
        (DQN, {"runtime": "inline"}),
        (A2C, {"runtime": "inline", "topology": "shared_params"}),
        pytest.param(A2C, {"runtime": "processes"}, marks=pytest.mark.slow),
        pytest.param(PPO, {"runtime": "threads", "actors": 2}, marks=pytest.mark.slow),
    ],
)
def test_one_child_with_alpha_and_beta_1_is_the_run_alone(tmp_path: Path, algo: Any, own: dict[str, Any]) -> None:
    steps = STEPS * own.get("actors", 1)
    plain = {k: v for k, v in RUN.items() if k != "quiet"}
    plan = resolve("CartPole-v1", {**plain, "algo": algo, "steps": steps, "seed": 3, "actors": 1, "envs": ENVS, **own})
    alone = launch.run(plan, out=tmp_path / "alone", quiet=True)
    family = train(tmp_path, {"one": {**own, "seed": 3}}, algo=algo, steps=steps, seed=3, rule=SAME)
    assert family.children["one"].result.summary["params_sha256"] == alone.summary["params_sha256"]
    assert family.summary["params_sha256"] == alone.summary["params_sha256"]
    assert family.summary["env_steps"] == alone.summary["env_steps"] == steps
    assert family.summary["ended"] == "budget" and family.summary["rejected"] == 0


def test_two_children_train_one_agent(tmp_path: Path) -> None:
    federation = FederationConfig(every_updates=1, eval_every=0, expect=2)
    family = train(tmp_path, {"one": {}, "two": {}}, algo=PPO, steps=20 * STEPS, federation=federation)
    summary, state = family.summary, family.parent.hub.state
    assert summary["children"] == 2 and summary["env_steps"] >= 20 * STEPS
    assert summary["exchanges"] == summary["updates"] == sum(child.pushes for child in state.children.values())
    assert {joined.result.ended for joined in family.children.values()} <= {"stopped", "budget"}
    assert all(joined.exchanges for joined in family.children.values())
    # Every observation counts once: those of both children, and of each child its own alone.
    assert state.normaliser is not None
    counted = sum(child.steps - child.episodes for child in state.children.values())
    assert state.normaliser.samples == pytest.approx(counted, abs=2 * ENVS * len(state.children))


def test_a_learning_path_has_every_asked_update(tmp_path: Path) -> None:
    """However long an evaluation takes: the weights are kept when their update comes, and evaluated after the training."""
    federation = FederationConfig(every_updates=1, eval_every=0, path_every=3, updates=10)
    family = train(tmp_path, {"one": {}, "two": {}}, algo=PPO, federation=federation)
    rows = [json.loads(line) for line in (tmp_path / "parent" / "metrics.jsonl").read_text().splitlines()]
    path = [row for row in rows if "path/return" in row]
    assert family.summary["updates"] == 10 and [row["path/updates"] for row in path] == [3.0, 6.0, 9.0]
    assert all(1.0 <= row["path/return"] <= 500.0 for row in path)
    seconds = [row["path/seconds"] for row in path]
    assert sorted(seconds) == seconds and 0.0 <= seconds[0] <= seconds[-1] <= family.summary["wall_s"]
    kept = family.parent._snapshots.kept
    assert [one.steps for one in kept] == [row["path/step"] for row in path]
    assert len({one.weights.tobytes() for one in kept}) == 3


def test_observations_count_once_in_rounds(tmp_path: Path) -> None:
    """Most pushes of a round are answered with the old weights; the parent has their observations nevertheless."""
    federation = FederationConfig(rule="fedavg", every_updates=1, eval_every=0, expect=2)
    rule = {"quorum": 2, "grace": 0.5}
    family = train(tmp_path, {"one": {}, "two": {}}, algo=PPO, steps=20 * STEPS, federation=federation, rule=rule)
    state = family.parent.hub.state
    assert state.normaliser is not None and state.pushes > updates_of(state)
    counted = sum(child.steps - child.episodes for child in state.children.values())
    assert state.normaliser.samples == pytest.approx(counted, abs=2 * ENVS * len(state.children))


def test_a_checkpoint_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that is applied while the checkpoint is written belongs to none of its arrays."""
    with parent_of(tmp_path / "parent", algo=A2C, steps=STEPS) as parent:
        hub, made = parent.hub, Hub.checkpoint
        before = hub.state

        def busy(self: Hub, *snapshot: Any) -> dict[str, np.ndarray]:
            arrays = made(self, *snapshot)
            hub.state = before._replace(weights=before.weights + 1, steps=7)
            return arrays

        monkeypatch.setattr(Hub, "checkpoint", busy)
        assert parent.folder.save(hub, parent.ledger, 0.0)
        loaded = parent.folder._loaded()
    assert loaded.step == 0 and loaded.meta["env_steps"] == 0
    first = next(array for name, array in loaded.arrays.items() if name.startswith("state/params/") and array.ndim == 2)
    assert np.isin(first, loaded.arrays["federation/weights"]).all()


def test_a_parents_folder_is_one_of_a_run(tmp_path: Path) -> None:
    family = train(tmp_path, {"one": {}}, algo=A2C, steps=STEPS, eval_episodes=2)
    run = shoal.load(tmp_path / "parent")
    assert run.params_hash == family.summary["params_sha256"]
    assert run.evaluate(2).mean > 0 and run.policy(np.zeros(4, np.float32)) in (0, 1)
    assert "Learning curve" in run.report(film=False).read_text() or run.folder.report_path.exists()
    assert family.summary["eval_episodes"] == 2 and family.summary["eval_mean"] > 0
    for name in ("config.json", "metrics.jsonl", "policy.safetensors", "summary.json", "evaluation.json"):
        assert (tmp_path / "parent" / name).exists(), name


def test_a_resumed_parent_goes_on_and_its_version_never_goes_back(tmp_path: Path) -> None:
    first = train(tmp_path / "first", {"one": {}}, algo=PPO, steps=STEPS)
    before = first.parent.hub.state
    folder = tmp_path / "first" / "parent"
    second = train(tmp_path / "second", {"one": {}}, env=None, algo=None, net=None, steps=2 * STEPS, **resumed(folder))
    after = second.parent.hub.state
    assert after.version > before.version and updates_of(after) > updates_of(before)
    assert after.steps >= 2 * STEPS and after.children["one"].sequence > before.children["one"].sequence
    assert second.parent.folder.run == first.parent.folder.run
    for name in ("bytes_up", "bytes_down", "exchanges"):
        assert second.summary[name] > first.summary[name] > 0, "counted over both"
    assert list(second.parent.ledger.times)[: len(first.parent.ledger.times)] == list(first.parent.ledger.times)
    assert second.parent.plan.settings.algo == "ppo" and second.parent.config == first.parent.config


def test_schedules_of_a_child_begin_at_the_parents_share_of_the_budget(tmp_path: Path) -> None:
    """A child that joins late, or a resumed parent: the learning rate must not rise again."""
    first = train(tmp_path / "first", {"one": {}}, algo=PPO, steps=STEPS)
    begun, ended = (first.children["one"].result.state, first.parent.hub.welcome("two"))
    assert begun is not None and float(begun.progress) < 1.0 and ended.spent == 1.0
    assert float(first.parent._learner().progress) == 1.0, "its sampled actions explore as at the end"
    again = resumed(tmp_path / "first" / "parent")
    second = train(tmp_path / "second", {"two": {}}, env=None, algo=None, net=None, steps=4 * STEPS, **again)
    state = second.children["two"].result.state
    updates = second.children["two"].result.summary["updates"]
    assert state is not None and second.parent.hub.welcome("three").spent == 1.0
    assert float(state.progress) == pytest.approx(0.25 + (updates - 1) * UNROLL * ENVS / (4 * STEPS))


@pytest.mark.parametrize("damaged", [False, True])
def test_versions_do_not_go_back_with_a_checkpoint_of_an_earlier_life(tmp_path: Path, damaged: bool) -> None:
    """Resumed by name, or because all newer checkpoints are damaged."""
    run, again = tmp_path / "run", {"env": None, "algo": None, "net": None, **resumed(tmp_path / "run")}

    def lived(parent: Parent, version: int, steps: int) -> None:
        parent.hub.state = parent.hub.state._replace(version=version, steps=steps)
        parent.hub.stored(parent.folder.save(parent.hub, parent.ledger, 1.0))

    with parent_of(run, algo=A2C, steps=STEPS) as first:
        lived(first, 3, 8)
        assert first.hub.state.steps == 8
    with parent_of(None, **again) as second:
        assert second.hub.state.version == RESERVED + 3
        lived(second, RESERVED + 500, 16)
    checkpoints = run / "checkpoints"
    if damaged:
        for step in (8, 16):
            next(checkpoints.glob(f"step-{step}.*safetensors")).write_bytes(b"")
    else:
        again["resume"] = checkpoints / "step-0.json"
    third = parent_of(None, **again)
    assert third.hub.state.steps == 0
    assert third.hub.state.version == 2 * RESERVED + 500 and updates_of(third.hub.state) == 0


def test_a_resumed_parent_tells_its_children_the_same(tmp_path: Path) -> None:
    federation = FederationConfig(rule="staleness", encoding="float16", every_updates=2, eval_every=0)
    about: dict[str, Any] = {"federation": federation, "rule": {"alpha": 0.25}, "algo": {"name": "a2c", "gamma": 0.9}}
    with parent_of(tmp_path / "run", topology="shared_params", steps=1000, **about) as first:
        before = first.hub.federation
    assert before.settings["algo"] == {"name": "a2c", "gamma": 0.9}
    more = {"env": None, "algo": None, "net": None, "rule": None, "federation": {"expect": "1"}}
    with parent_of(None, resume=tmp_path / "run", **more) as second:
        after = second.hub.federation
    assert after.settings == before.settings and after.rule == before.rule and second.config == first.config
    file = tmp_path / "run" / "federation.json"  # of an older version, which sent all settings of the algorithm
    saved = {name: value for name, value in json.loads(file.read_text()).items() if name != "algo"}
    file.write_text(json.dumps(saved))
    with parent_of(None, resume=tmp_path / "run", **more) as third:
        assert set(third.hub.federation.settings["algo"]) == set(third.plan.as_dict()["algo"])


def resumed(folder: Path) -> dict[str, Any]:
    return {"resume": folder, "federation": None}


def test_updates_are_a_budget(tmp_path: Path) -> None:
    federation = FederationConfig(every_updates=1, eval_every=0, updates=5)
    family = train(tmp_path, {"one": {}}, algo=A2C, federation=federation)
    assert family.summary["updates"] == 5 and family.summary["ended"] == "budget"
    assert family.children["one"].result.ended == "stopped"


def test_the_parent_judges_its_weights_and_stops_at_the_goal(tmp_path: Path) -> None:
    federation = FederationConfig(every_updates=1, eval_every=2)
    family = train(tmp_path, {"one": {}}, algo=A2C, steps=10**7, until_return=5.0, federation=federation)
    assert family.summary["ended"] == "solved" and family.summary["solved_at_s"] > 0
    lines = (tmp_path / "parent" / "metrics.jsonl").read_text()
    assert '"eval/return":' in lines and '"child/one/share":1.0' in lines


def test_a_goal_that_is_reached_with_the_last_step_counts(tmp_path: Path) -> None:
    """The budget is spent before an evaluation has confirmed the goal: it is waited for, and nothing more is taken in."""
    steps = 500 * UNROLL * ENVS
    family = train(tmp_path, {"one": {}}, algo=A2C, steps=steps, until_return=5.0)
    assert family.summary["ended"] == "solved" and family.summary["solved_at_s"] is not None
    assert family.summary["env_steps"] <= steps + UNROLL * ENVS


def test_the_budget_is_the_tuned_one_for_each_child_that_is_expected(tmp_path: Path) -> None:
    one = parent_of(tmp_path / "one", algo=A2C)
    three = parent_of(tmp_path / "three", algo=A2C, federation=FederationConfig(expect=3))
    assert three.plan.settings.steps == 3 * one.plan.settings.steps
    told_ = three.hub.federation.settings
    assert told_["steps"] == three.plan.settings.steps and told_["schedule_steps"] == one.plan.settings.steps


def test_moments_travel(tmp_path: Path) -> None:
    federation = FederationConfig(every_updates=1, eval_every=0, moments="travel")
    family = train(tmp_path, {"one": {}}, algo=A2C, steps=STEPS, federation=federation, rule=SAME)
    state = family.parent.hub.state
    assert state.moments and all(np.isfinite(vector).all() and vector.min() >= 0 for vector in state.moments.values())
    learnt = family.children["one"].result.state
    assert learnt is not None
    for name, vector in family.parent.vectors.moments_of(learnt).items():
        np.testing.assert_array_equal(state.moments[name], vector)


def test_a_late_child_begins_with_the_moments_and_their_count(tmp_path: Path) -> None:
    """Adam divides young moments by 1 - b^count: a count of 0 beside old moments would make its first steps too small."""
    federation = FederationConfig(every_updates=1, eval_every=0, moments="travel")
    family = train(tmp_path, {"one": {}}, algo=PPO, steps=STEPS, federation=federation, rule=SAME)
    state, vectors = family.parent.hub.state, family.parent.vectors
    begun = Exchanged(state.version, state.weights, state.normaliser, state.moments)
    leaves = first_leaves(vectors, begun)
    counts = {name: int(leaf) for name, leaf in leaves.items() if name.startswith("moments/") and leaf.ndim == 0}
    assert counts and set(counts.values()) == {state.version}
    second = parent_of(tmp_path / "late", algo=PPO, steps=STEPS, federation=federation, rule=SAME)
    plan, _ = planned(second.hub.welcome("two"), {"runtime": "inline", "actors": 1, "envs": ENVS}, "two", False)
    learner = make_blueprint(plan, None, leaves, driven=True).initial_state()
    for name, vector in vectors.moments_of(learner).items():
        np.testing.assert_array_equal(vector, state.moments[name])
    assert {int(leaf) for name, leaf in named_leaves(learner).items() if name in counts} == {state.version}
    assert not any(name.startswith("moments/") for name in first_leaves(vectors, begun._replace(moments={})))


def test_moments_travel_only_where_all_workers_share_them(tmp_path: Path) -> None:
    federation = FederationConfig(every_updates=1, eval_every=0, moments="travel")
    for algo, fits in ((A2C, True), ({**A2C, "batch_size": 2}, False), (PPO, False)):
        parent = parent_of(tmp_path / f"{fits}-{len(algo)}", algo=algo, steps=STEPS, federation=federation)
        welcome = parent.hub.welcome("one")
        planned(welcome, {"runtime": "inline"}, "one", False)
        own = {"topology": "shared_params", "actors": 1, "envs": ENVS}
        if fits:
            planned(welcome, own, "one", False)
            own["topology.moments"] = "own"
        with pytest.raises(BadInput, match="its workers have moments of their own"):
            planned(welcome, own, "one", False)


@pytest.mark.parametrize("rule", ["fedavg", "staleness", "fedbuff", "diloco"])
def test_every_kind_of_rule_trains(tmp_path: Path, rule: str) -> None:
    federation = FederationConfig(every_updates=1, eval_every=0, rule=rule, updates=3)
    family = train(tmp_path, {"one": {}}, algo=A2C, federation=federation)
    assert family.summary["updates"] == 3


@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_weights_travel_smaller(tmp_path: Path, encoding: Any) -> None:
    federation = FederationConfig(every_updates=1, eval_every=0, encoding=encoding)
    family = train(tmp_path, {"one": {}}, algo=A2C, steps=STEPS, federation=federation)
    plain = 4 * family.parent.vectors.layout.size * family.summary["exchanges"]
    assert family.summary["bytes_up"] < 0.8 * plain and family.summary["rejected"] == 0


def test_weights_travel_by_datagrams(tmp_path: Path) -> None:
    federation = FederationConfig(every_updates=1, eval_every=0, transport="udp", updates=30)
    family = train(tmp_path, {"one": {}, "two": {}}, algo=A2C, federation=federation)
    assert family.summary["updates"] == 30 and family.summary["children"] == 2 and family.summary["bytes_up"] > 0
    assert {joined.result.ended for joined in family.children.values()} == {"stopped"}  # asked for on the connection


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": {"rule": "median"}}, "does not tolerate missing slices"),
        ({"federation": {"encoding": "int8"}}, "datagrams carry float32"),
        ({"federation": {"moments": "travel"}}, "carry only weights"),
        ({"algo": PPO}, "normalises observations"),
        ({"until_return": 5.0}, "use --until-eval"),
    ],
)
def test_what_no_datagram_carries_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    federation = FederationConfig(transport="udp", **changes.pop("federation", {}))
    with pytest.raises(BadInput, match=said):
        parent_of(tmp_path / "run", **{"algo": A2C, "federation": federation, **changes})
    assert not (tmp_path / "run").exists()


def test_a_parent_refused_leaves_no_folder(tmp_path: Path) -> None:
    with parent_of(tmp_path / "one", algo=A2C, steps=100) as parent:
        port = parent.url.rpartition(":")[2]
        second = Parent("CartPole-v1", out=tmp_path / "two", bind=f"127.0.0.1:{port}", **RUN)
        with pytest.raises(BadInput, match="in use"):
            second.__enter__()
    assert not (tmp_path / "two").exists()
