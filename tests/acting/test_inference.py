"""Batched inference, and the unrolls that it assembles for actors without a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from shoal.acting.inference import SERVED, WORTH, Batcher, InferenceStats, Tally, call_sizes
from shoal.core.ports import NOT_YET
from shoal.core.program import Context, Fault, StreamSpec
from shoal.core.trajectory import trajectory_record
from shoal.core.weights import to_vector
from shoal.envs.autoreset import Rows
from shoal.envs.batch import Step
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.roles.seed import EnvActor, Inference
from shoal.runtimes.inline import inline_ports
from shoal.topologies.seed import SeedConfig, SeedTopology

T, B = 4, 2


def blueprint_of(actors: int = 3, cell: str = "none", unroll: int = T) -> Any:
    settings = {
        "backend": "jax",
        "actors": actors,
        "envs": B,
        "algo": {"name": "a2c", "unroll": unroll},
        "net": {"hidden": (8,), "cell": cell, "cell_size": 4},
        "runtime": "inline",
        "topology": "seed",
        "steps": 10_000,
    }
    return make_blueprint(resolve("CartPole-v1", settings), None, None)


@pytest.mark.parametrize(
    ("envs", "most", "sizes"), [(4, 16, [4, 8, 16]), (4, 12, [4, 8, 12]), (8, 8, [8]), (8, 3, [3]), (1, 1, [1])]
)
def test_few_sizes_are_compiled(envs: int, most: int, sizes: list[int]) -> None:
    assert call_sizes(envs, most) == sizes


def questions(blueprint: Any, count: int) -> list[dict[str, np.ndarray]]:
    shape = blueprint.algorithm.task.spec.obs.shape
    return [
        {
            "obs": np.random.default_rng(i).normal(size=(B, *shape)).astype(np.float32),
            "first": np.array([i == 0, False]),
        }
        for i in range(count)
    ]


@pytest.mark.parametrize("rows", [6, 4, 2, 1], ids=lambda rows: f"{rows} rows a call")
@pytest.mark.parametrize("cell", ["none", "gru"])
def test_every_question_gets_the_answer_that_it_would_get_alone(rows: int, cell: str) -> None:
    """However questions are put together, padded or cut: log-probabilities and carries are those of a call by itself."""
    blueprint = blueprint_of(cell=cell)
    algorithm, actor = blueprint.algorithm, blueprint.algorithm.actor_state(blueprint.initial_state())
    batcher = Batcher(blueprint, rows, (0,))
    asked = questions(blueprint, min(batcher.most, 3))
    carries = [
        {n: np.full(a.shape, 0.1 * i, np.float32) for n, a in algorithm.initial_carry(B).items()} for i in range(3)
    ]
    found = batcher(actor, asked, carries[: len(asked)])
    assert batcher.rows == len(asked) * B and batcher.calls == -(-len(asked) * B // rows)
    for question, carry, one in zip(asked, carries, found, strict=False):
        params, after = algorithm.net.policy(actor.params, question["obs"], carry, question["first"])
        log_pi = jax.nn.log_softmax(params)[np.arange(B), one.action]
        np.testing.assert_allclose(one.extras["log_prob"], log_pi, rtol=1e-4, atol=1e-5)
        for name, array in after.items():
            np.testing.assert_allclose(one.carry[name], array, rtol=1e-4, atol=1e-5)


def test_calls_draw_anew() -> None:
    blueprint = blueprint_of(actors=1)
    actor = blueprint.algorithm.actor_state(blueprint.initial_state())
    batcher = Batcher(blueprint, 100, (0,))
    same = questions(blueprint, 1)
    drawn = {tuple(batcher(actor, same, [{}])[0].action.tolist()) for _ in range(40)}
    assert len(drawn) > 1


def test_waiting_is_worth_as_long_as_calls_take() -> None:
    batcher = Batcher(blueprint_of(actors=1), 100, (0,))
    assert batcher.patience(1.0) == 0.0, "nothing is known yet"
    batcher.took = 0.003
    assert batcher.patience(1.0) == pytest.approx(WORTH * 0.003) and batcher.patience(0.001) == 0.001


def test_the_main_role_hears_the_mean_batch_of_all_servers() -> None:
    spec = StreamSpec(producers=("a", "b"), consumer="m", depth=2, record=SERVED.record)
    stream = inline_ports({"s": spec}, ["a", "b", "m"])["s"]
    heard = InferenceStats(stream)
    assert heard.metrics() == {}
    batcher: Any = type("Counts", (), {"calls": 0, "rows": 0})
    for lane, (calls, rows) in enumerate([(10, 320), (10, 80)]):
        batcher.calls = batcher.rows = 0
        tally = Tally(stream, lane, batcher)
        tally.report()
        batcher.calls, batcher.rows = calls, rows
        tally._at -= 1.0  # a second ago
        tally.report()
    found = heard.metrics()
    assert found["inference/batch"] == 20 and found["speed/predictions"] == pytest.approx(400, rel=0.05)


class Scripted:
    """Two environments that end, are cut, raise, and say NaN, by the number of the step."""

    def __init__(self, spec: Any) -> None:
        self.spec, self.size, self.faults = spec, B, list[tuple[str, str]]()
        self.steps, self.actions = 0, list[Any]()

    def reset(self) -> np.ndarray:
        return np.zeros((B, *self.spec.obs.shape), np.float32)

    def step(self, action: np.ndarray) -> Step:
        n = self.steps = self.steps + 1
        self.actions.append(np.array(action))
        obs = np.full((B, *self.spec.obs.shape), n, np.float32)
        obs[1] *= 10
        obs[1, 0] = np.nan if n in (7, 17, 18) else obs[1, 0]
        terminated, truncated = np.array([n in (2, 9), n == 3]), np.array([n == 13, n == 22])
        dropped = np.array([n == 5, False])
        return Step(obs, np.array([n, 10.0 * n], np.float32), terminated, truncated, dropped)

    def restart(self, index: int) -> np.ndarray:
        return np.full(self.spec.obs.shape, -self.steps, np.float32)

    def snapshot(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        raise AssertionError

    def close(self) -> None: ...


class Pair:
    """Actors and the inference, stepped by hand; unrolls are looked at where the learner would take them."""

    def __init__(self, blueprint: Any, batches: list[Scripted]) -> None:
        self.faults: list[Fault] = []
        self.blueprint = dataclasses.replace(blueprint, make_rows=partial(self._rows, batches))
        program = SeedTopology(SeedConfig()).program(self.blueprint)
        self.ports = inline_ports(program.ports, [role.name for role in program.roles])
        state = self.blueprint.initial_state()
        self.ports["weights"].publish(0, to_vector(self.blueprint.algorithm.actor_state(state)))
        self.inference = self._runs(Inference(self.blueprint, 0, 0.0, self.ports, self._context("inference")))
        self.actors = [self.actor(i) for i in range(blueprint.actors)]
        self.taken: list[list[dict[str, np.ndarray]]] = [[] for _ in self.actors]

    def _rows(self, batches: list[Scripted], index: int, context: Context) -> Rows:
        return Rows(batches[index], lambda kind, detail: None)

    def _context(self, name: str) -> Context:
        return Context(name=name, fault=self.faults.append)

    def actor(self, index: int) -> Any:
        return self._runs(EnvActor(self.blueprint, index, self.ports, self._context(f"actor-{index}")))

    def _runs(self, role: Any) -> Any:
        steps = role.run()
        return [steps, steps.send(None)]

    def _go(self, running: Any) -> bool:
        """Until it has to wait; whether it got anywhere."""
        moved = False
        while (answer := running[1].attempt()) is not NOT_YET:
            running[1], moved = running[0].send(answer), True
        return moved

    def round(self) -> None:
        """The inference serves whoever asks; actors that were answered step once and ask again."""
        self._go(self.inference)
        for running in self.actors:
            answer = running[1].attempt()
            if answer is not NOT_YET:
                running[1] = running[0].send(answer)
        for lane, taken in enumerate(self.taken):
            slot = self.ports["unrolls"].take(lane).now()
            if slot is not None:
                taken.append({name: array.copy() for name, array in slot.items()})
                self.ports["unrolls"].release(lane)


def test_unrolls_are_those_that_the_actor_would_have_written_itself() -> None:
    """Ends, cuts, drops and NaN at every place of an unroll; the last row of one is the first of the next."""
    blueprint = blueprint_of(actors=1)
    batch = Scripted(blueprint.algorithm.task.spec)
    pair = Pair(blueprint, [batch])
    for _ in range(6 * T + 2):
        pair.round()
    assert len(pair.taken[0]) == 6
    again, actions = Scripted(batch.spec), iter(batch.actions)
    rows = Rows(again, lambda kind, detail: None)
    slot = trajectory_record(batch.spec, T, B).empty()
    for unroll in pair.taken[0]:
        rows.begin(slot)
        for t in range(T):
            rows.step(slot, t, next(actions))
        for name, array in slot.items():
            if name not in ("clock", "version"):
                np.testing.assert_array_equal(unroll[name], array, err_msg=name)
    whole = np.concatenate([unroll["valid"] for unroll in pair.taken[0]])
    assert not whole.all() and whole.any(), "the script has both"


def test_rows_before_a_nan_are_taken_back() -> None:
    blueprint = blueprint_of(actors=1, unroll=8)
    pair = Pair(blueprint, [Scripted(blueprint.algorithm.task.spec)])
    for _ in range(9):
        pair.round()
    assert pair.taken[0][0]["valid"][:, 1].tolist() == [True, True, True, False, False, False, False, True]


def test_a_successor_is_known_by_its_run_and_the_unfinished_unroll_is_dropped() -> None:
    blueprint = blueprint_of(actors=2, cell="gru")
    spec = blueprint.algorithm.task.spec
    pair = Pair(blueprint, [Scripted(spec), Scripted(spec)])
    for _ in range(T + 2):
        pair.round()
    assert [len(taken) for taken in pair.taken] == [1, 1]
    pair.actors[0][0].close()
    pair.blueprint = dataclasses.replace(pair.blueprint, make_rows=partial(pair._rows, [Scripted(spec)] * 2))
    pair.actors[0] = pair.actor(0)
    for _ in range(T + 1):
        pair.round()
    fresh, other = pair.taken[0][1], pair.taken[1][1]
    assert fresh["obs"][:, 0, 0].tolist() == [0, 1, 2, 3, 4] and fresh["first"][0].all()
    (carry,) = (name for name in fresh if name.startswith("carry/"))
    assert not fresh[carry].any() and other[carry].any(), "the policy's memory begins anew, for this actor alone"
    assert other["obs"][0, 0, 0] == T, "the other actor's unrolls go on"


def test_a_full_lane_holds_its_actor_and_nobody_else() -> None:
    blueprint = blueprint_of(actors=2)
    spec = blueprint.algorithm.task.spec
    pair = Pair(blueprint, [Scripted(spec), Scripted(spec)])
    unrolls = pair.ports["unrolls"]
    take = unrolls.take
    unrolls.take = lambda lane: take(lane) if lane == 1 else type("Never", (), {"now": lambda self: None})()
    for _ in range(5 * T):
        pair.round()
    assert unrolls.depth(0) == 2 and len(pair.taken[1]) == 4
    unrolls.take = take
    for _ in range(2 * T):
        pair.round()
    assert len(pair.taken[0]) >= 3
    starts = [unroll["obs"][0, 0, 0] for unroll in pair.taken[0]]
    assert starts == sorted(starts) and len(set(starts)) == len(starts), "no row is lost or doubled"
