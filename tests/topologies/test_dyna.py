"""Topology dyna: real and imagined stay apart, the ratio is what was asked for, inline repeats itself bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import shoal
from shoal.algos.dyna_q import DynaQ
from shoal.core.errors import BadInput
from shoal.core.program import Context, Fault
from shoal.core.trajectory import as_trajectory
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.roles.dyna import DynaUpdate, ImaginedMemory
from shoal.roles.planner import PLAN_METRICS, Planner, Split, block_record
from shoal.runtimes.inline import inline_ports
from shoal.topologies.dyna import DynaConfig, DynaTopology

T, B = 8, 4
SMALL: dict[str, Any] = {
    "name": "dyna_q",
    "unroll": T,
    "batch_size": 16,
    "every": 4,
    "warmup": 60,
    "capacity": 256,
    "starts": 8,
    "horizon": 3,
    "imagined": 200,
    "model_hidden": (8,),
    "members": 2,
    "model_batch": 16,
    "model_gradients": 4,
}


def train(out: Path, updates: int = 12, runtime: str = "inline", actors: int = 3, **settings: Any) -> shoal.Run:
    own = {**SMALL, **settings.pop("algo", {})}
    plain: dict[str, Any] = {"backend": "jax", "envs": B, "net": {"hidden": (16,)}, "steps": updates * T * B}
    quiet: dict[str, Any] = {"eval_episodes": 0, "sinks": ("jsonl",), "quiet": True, "report": False}
    settings.setdefault("metrics_every", 0)
    return shoal.train("CartPole-v1", algo=own, runtime=runtime, actors=actors, out=out, **plain, **quiet, **settings)


def metrics(run: shoal.Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def blueprint(actors: int = 3, **algo: Any) -> Any:
    settings = {"algo": {**SMALL, **algo}, "net": {"hidden": (16,)}, "backend": "jax", "envs": B, "runtime": "inline"}
    return make_blueprint(resolve("CartPole-v1", {**settings, "actors": actors, "steps": 1000}), None, None)


def test_inline_repeats_itself_and_another_seed_differs(tmp_path: Path) -> None:
    runs = [
        train(tmp_path / str(i), seed=seed, topology={"name": "dyna", "explorers": 1})
        for i, seed in enumerate((1, 1, 2))
    ]
    hashes = [run.params_hash for run in runs]
    assert hashes[0] == hashes[1] != hashes[2]
    models = [a for run in runs[:2] for n, a in run._loaded().arrays.items() if n == "state/extra/model/head/w"]
    np.testing.assert_array_equal(*models)


def test_steps_and_episodes_are_real_ones(tmp_path: Path) -> None:
    run = train(tmp_path / "run", actors=4)
    assert run.summary["env_steps"] == 12 * T * B and run.summary["updates"] == 12
    lengths = sum(row.get("episode/count", 0) * row.get("episode/length", 0) for row in metrics(run))
    assert 0 < lengths <= 12 * T * B  # three planners imagine, and none of it is an episode
    assert run.summary["episodes"] == sum(row.get("episode/count", 0) for row in metrics(run))


def test_the_ratio_is_what_was_asked_for_and_the_error_is_told(tmp_path: Path) -> None:
    rows = metrics(train(tmp_path / "run", updates=20, algo={"adapt": False, "ratio": 2.0, "final_ratio": 2.0}))
    assert "model/error" not in rows[0]  # nothing real to learn from yet
    known = [row for row in rows if "model/error" in row]
    parts_of_it = [known[-1][name] for name in PLAN_METRICS[:3]]
    assert known[-1]["model/error"] == pytest.approx(max(parts_of_it))
    made = np.diff([row["imagined/gradients"] for row in rows])
    assert (made[-10:] == 2.0 * T * B / 4).all()  # a round has as many real gradients as it has steps over `every`


def test_a_model_that_errs_is_not_learnt_from(tmp_path: Path) -> None:
    rows = metrics(train(tmp_path / "run", algo={"tolerance": 1e-6}))
    assert any("model/error" in row for row in rows)
    assert all(row["imagined/ratio"] == 0 and row["imagined/gradients"] == 0 for row in rows)


def test_the_largest_error_alone_is_held_against_the_tolerance() -> None:
    update, state, block = _learner_and_block(blueprint(tolerance=0.5, ratio=4.0, mix=0.0))
    block["metrics"][...] = 0.0
    block["metrics"][:3] = (0.1, 0.2, 0.2)  # of the change, the reward, the end
    update.take_in(0, block)
    told = update(state, update._algorithm.actor_state(state), [_unroll(blueprint())], 0, 0.0)[2]
    assert told["model/error"] == pytest.approx(0.2) and told["imagined/ratio"] == pytest.approx(4.0 * (1 - 0.2 / 0.5))


@pytest.mark.parametrize(("mix", "real"), [(0.0, 0), (0.25, 4), (1.0, 16)])
def test_minibatches_of_imagination_hold_their_share_of_real_rows(mix: float, real: int) -> None:
    made = blueprint(mix=mix, adapt=False, ratio=1.0, replay="prioritized", sweeping=True, warmup=16)
    update, state, block = _learner_and_block(made)
    block["rows/obs"][...] = 5.0  # real ones lie within -1 and 1
    block["valid"][...] = True
    block["metrics"][...] = 0.0
    update.take_in(0, block)
    drawn: list[Any] = []
    learn = update._learn
    update._learn = lambda *args: (drawn.append(args[1]), learn(*args))[1]
    told = update(state, made.algorithm.actor_state(state), [_unroll(made)], 0, 0.0)[2]
    assert told["imagined/gradients"] == T * B / 4 and len(drawn) == 1
    imagined = drawn[0].rows.obs[..., 0] == 5.0
    np.testing.assert_array_equal(imagined.sum(1), 16 - real)


def test_real_rows_beside_imagined_ones_come_from_the_whole_replay() -> None:
    """Equal priorities: the lower half of a whole minibatch's columns would reach the lower half of the replay."""
    made = blueprint(mix=0.5, adapt=False, ratio=1.0, replay="prioritized", alpha=0.0, warmup=16)
    update, state, block = _learner_and_block(made)
    block["valid"][...] = True
    block["metrics"][...] = 0.0
    update.take_in(0, block)
    memory, reached = update._real.memory, list[np.ndarray]()
    feedback = memory.feedback
    memory.feedback = lambda indices, td: (reached.append(indices), feedback(indices, td))[1]  # type: ignore[method-assign]
    update(state, made.algorithm.actor_state(state), [_unroll(made)], 0, 0.0)
    beside = [indices for indices in reached if indices.shape[1] == 8]
    assert len(reached) == 2 and len(beside) == 1, "a real call of 16 rows, then an imagined one with 8 of them"
    assert beside[0].max() >= 0.9 * memory.size() and beside[0].min() <= 0.1 * memory.size()


def _unroll(made: Any) -> Any:
    rng, slot = np.random.default_rng(0), made.record.empty()
    slot["obs"][...] = rng.uniform(-1, 1, slot["obs"].shape)
    slot["valid"][...], slot["discount"][...] = True, 1.0
    return as_trajectory(slot)


def _learner_and_block(made: Any) -> tuple[DynaUpdate, Any, Any]:
    """A learner's update, a first state, and a planner's empty block."""
    program = DynaTopology(DynaConfig(overlap=False)).program(made)
    ports = inline_ports(program.ports, [role.name for role in program.roles])
    state = jax.jit(made.algorithm.init)(jax.random.key(0))
    block = ports["imagined"].claim(0).now()
    ports["imagined"].push(0)
    _, taken = ports["imagined"].take_any([0]).now()
    assert taken is not None and block is not None
    context = Context(name="learner", fault=lambda fault: pytest.fail(fault.detail))
    return DynaUpdate(made, made.algorithm, ports, context), state, taken


def test_real_and_imagined_never_mix_their_masks() -> None:
    made = blueprint()
    algorithm = made.algorithm
    assert isinstance(algorithm, DynaQ)
    program = DynaTopology(DynaConfig(overlap=False)).program(made)
    ports = inline_ports(program.ports, [role.name for role in program.roles])
    faults: list[Fault] = []
    update = DynaUpdate(made, algorithm, ports, Context(name="learner", fault=faults.append))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    actor = algorithm.actor_state(state)
    rng = np.random.default_rng(0)
    real = 0
    for version in range(4):
        slot = {f.name: np.zeros(f.shape, f.dtype) for f in made.record.fields}
        slot["obs"][...] = rng.uniform(-1, 1, slot["obs"].shape)  # real: within -1 and 1
        slot["valid"][...] = rng.random(slot["valid"].shape) < 0.7
        slot["discount"][...] = 1.0
        block = ports["imagined"].claim(0).now()
        block["rows/obs"][...] = rng.uniform(5, 6, block["rows/obs"].shape)  # imagined: between 5 and 6
        block["rows/next_obs"][...] = 5.5
        block["valid"][...] = rng.random(block["valid"].shape) < 0.5
        block["metrics"][...] = 0.0
        counted = int(block["valid"].sum())
        ports["imagined"].push(0)
        before = update.imagined.size()
        trajectory = as_trajectory(slot)
        state, actor, told = update(state, actor, [trajectory], version, 0.0)
        real += int(slot["valid"].sum())
        assert told["imagined/rows"] == counted and update.imagined.size() == min(200, before + counted)
        assert told["replay/rows"] == real  # what is imagined is no row of the replay, whatever its mask says
    pool = ports["real"]
    kept, _ = pool.read(np.arange(int(pool.sizes()[0])), pool.counts())
    assert np.abs(kept["obs"]).max() <= 1.0
    batch = update.imagined.sample(3, 16, 0, 0)
    assert batch.drawn.rows.obs.min() >= 5.0 and (batch.drawn.weight == 1).all()
    assert not faults


def test_a_planner_waits_for_real_rows_then_imagines_from_them() -> None:
    made = blueprint(actors=2)
    algorithm = made.algorithm
    program = DynaTopology(DynaConfig(overlap=False)).program(made)
    ports = inline_ports(program.ports, [role.name for role in program.roles])
    learner = program.roles[0].build(ports, Context(name="learner", fault=lambda fault: None))
    planner = Planner(made, algorithm, 0, False, ports, Context(name="planner-1", fault=lambda fault: None))
    steps = planner.run()

    def go_on() -> Any:
        """Until it waits for a free slot; the block that it left."""
        op = next(steps)
        while (answer := op.now()) is not None:
            op = steps.send(answer)
        lane, slot = ports["imagined"].take_any([0]).now()
        block = {name: array.copy() for name, array in slot.items()}
        ports["imagined"].release(lane)
        return block

    empty = go_on()
    assert not empty["valid"].any() and np.isnan(empty["metrics"]).all()
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(100, 4)).astype(np.float32)
    rows = {"obs": obs, "action": rng.integers(0, 2, 100).astype(np.int32), "next_obs": obs + 0.1}
    ports["real"].write(0, {**rows, "reward": np.ones(100, np.float32), "discount": np.full(100, 0.98, np.float32)})
    extra = {**learner.trainer.state.extra, "box": (obs.min(0) - 1, obs.max(0) + 1)}  # as its own rows would have it
    learner.trainer.state = learner.trainer.state._replace(extra=extra)
    learner._publish()
    before = ports["model"].pull()[1]
    steps = planner.run()
    block = go_on()
    assert block["valid"].any() and np.isfinite(block["metrics"]).all()
    assert ports["model"].pull()[0] == 1 and not np.array_equal(ports["model"].pull()[1], before)
    starts = block["rows/obs"][:8]
    assert all((obs == start).all(1).any() for start in starts)
    assert [field.name for field in block_record(made, algorithm).fields] == list(block)


def test_held_out_rows_are_never_trained_on() -> None:
    split, rng = Split(10), np.random.default_rng(0)
    for size in (20, 57, 100, 201):
        training, held_out = split.training(rng, size, (5000,)), split.held_out(rng, size, (5000,))
        assert set(training) == {i for i in range(size) if i % 10} and set(held_out) == set(range(0, size, 10))


def test_new_imagined_rows_come_first_and_errors_decide_later() -> None:
    made = blueprint(actors=2, sweeping=True)
    memory = ImaginedMemory(made, made.algorithm)
    slot = block_record(made, made.algorithm).empty()
    slot["valid"][...] = True
    slot["rows/reward"][...] = np.arange(24)
    assert memory.insert(slot) == 24 and memory.ready()
    drawn = memory.sample(20, 16, 0, 0)
    errors = np.where(drawn.drawn.rows.reward == 7.0, 50.0, 0.0)
    memory.feedback(drawn.indices, errors)
    for call in range(1, 9):  # until every row was drawn once
        more = memory.sample(20, 16, 0, call)
        memory.feedback(more.indices, np.where(more.drawn.rows.reward == 7.0, 50.0, 0.0))
    assert np.mean(memory.sample(20, 16, 1, 0).drawn.rows.reward == 7.0) > 0.9


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"actors": 1},
            "--actors is 1: topology 'dyna', for dyna_q, needs at least 2, one that acts and one that plans",
        ),
        ({"topology": {"name": "dyna", "explorers": 3}}, "--topology.explorers is 3: there are only 2 planners"),
        (
            {"topology": {"name": "dyna", "consistency": "gossip"}},
            "--topology.consistency is 'gossip': expected one of",
        ),
    ],
)
def test_refusals(settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=told):
        train(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_its_model_and_its_rows(tmp_path: Path) -> None:
    run = train(tmp_path / "run", algo={"capacity": 1000})
    before = run._loaded().arrays["state/extra/model/head/w"]
    more = shoal.train(resume=run.path, steps=16 * T * B, quiet=True, report=False)
    assert more.summary["updates"] == 16 and more.summary["env_steps"] == 16 * T * B
    rows = metrics(more)
    assert rows[-1]["replay/rows"] > rows[11]["replay/rows"]
    after = more._loaded().arrays["state/extra/model/head/w"]
    assert np.abs(after - before).max() < 0.1  # it goes on from there


@pytest.mark.parametrize(("runtime", "consistency"), [("threads", "hogwild"), ("processes", "lock")])
def test_planners_at_the_same_time(runtime: str, consistency: str, tmp_path: Path) -> None:
    topology = {"name": "dyna", "consistency": consistency, "explorers": 1, "rounds": 1.0}
    run = train(tmp_path / "run", updates=60, runtime=runtime, topology=topology)
    assert run.summary["faults"] == 0 and run.summary["updates"] == 60
    known = [row for row in metrics(run) if "model/error" in row]
    assert known and all(np.isfinite(list(row.values())).all() for row in known)


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_the_learner_waits_for_as_many_rounds_as_it_is_told_to(runtime: str, tmp_path: Path) -> None:
    rows = metrics(train(tmp_path / "run", runtime=runtime, topology={"name": "dyna", "rounds": 3.0}))
    most = SMALL["starts"] * SMALL["horizon"]
    warm = [row["imagined/rows"] for row in rows if "model/error" in row][1:]
    assert len(warm) >= 8 and all(
        made > 2 * SMALL["starts"] for made in warm
    )  # three blocks at least; each has a first step
    if runtime == "inline":  # beside threads, planners make as many more as the learner's update takes time
        assert max(warm) <= (3 + 2) * most  # and what the two planners had ready besides


KNOBS: dict[str, Any] = {"mix": 0.0, "imagined": 20, "model_batch": 8, "model_gradients": 2, "holdout": 0.5}


@pytest.mark.slow
def test_every_knob_of_the_roles_is_read(tmp_path: Path) -> None:
    """Another value makes other weights; those of the algorithm itself are in tests/algos/test_dyna_q.py."""
    flipped: list[dict[str, Any]] = [{}, *({knob: value} for knob, value in KNOBS.items())]
    runs = [train(tmp_path / str(i), algo={"adapt": False, **knob}) for i, knob in enumerate(flipped)]
    assert len({run.params_hash for run in runs}) == len(flipped)
