"""One contract over every algorithm: what topologies may rely on, whichever they carry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import continuous_algos
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.acting.compiled_act import compiled_act
from shoal.algos import ALGOS
from shoal.algos.on_policy import OnPolicy, OnPolicyConfig
from shoal.core.algorithm import Replay, Task
from shoal.core.keys import key_data
from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Trajectory
from shoal.core.weights import layout_of, params_hash, to_vector
from shoal.learning.compiled_update import apply, compiled_update
from shoal.nets.actor_critic import ActorCritic, NetConfig
from shoal.nets.q_network import QNetConfig, QNetwork

T, B, WIDTH = 8, 4, 3
TERMINATED, TRUNCATED = (2, 0), (4, 1)  # (row, column) of the two ends in `trajectory`
ACTIONS = {
    "discrete": ActionSpec((Categorical((3,)),), scalar=True),
    "box": ActionSpec((Continuous((-1.0, -1.0), (1.0, 1.0)),)),
    "mixed": ActionSpec((Categorical((3, 2)), Continuous((-2.0,), (2.0,)), Binary(2))),
}
KINDS = ("discrete", "mixed", "recurrent")
ON_POLICY = [name for name, entry in ALGOS.items() if issubclass(entry, OnPolicy)]


@cache
def make(name: str, kind: str = "discrete", **settings: Any) -> Any:
    """An algorithm on a small net. The same arguments make the same object, so that it compiles once a session."""
    return build(name, kind, **settings)


def build(name: str, kind: str = "discrete", **settings: Any) -> Any:
    spec = EnvSpec("test", ObsSpec((WIDTH,)), ACTIONS["discrete" if kind == "recurrent" else kind])
    net = NetConfig(hidden=(8,), cell="gru" if kind == "recurrent" else "none", cell_size=6)
    config = ALGOS[name].Config(**{"unroll": T, **settings})
    return ALGOS[name](config, Task(spec=spec, envs=B), ActorCritic(net, spec))


@cache
def begin(algorithm: Any) -> Any:
    """A state with params that are not symmetric: heads begin small, and small things hide."""
    state, rng = jax.jit(algorithm.init)(jax.random.key(1)), np.random.default_rng(2)
    loud = jax.tree.map(lambda p: np.asarray(p + 0.3 * rng.normal(size=p.shape), np.float32), state.params)
    return state._replace(params=jax.device_put(loud))


def trajectory(algorithm: Any, seed: int = 0) -> Trajectory:
    """Unrolls of B environments. Column 0 terminates at row 2, column 1 is truncated at row 4."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, B, WIDTH)).astype(np.float32)
    actor = algorithm.actor_state(begin(algorithm))
    act = compiled_act(algorithm)
    none, ones = np.zeros(B, bool), np.ones(B, np.float32)
    carry = {n: np.asarray(rng.normal(size=a.shape), np.float32) for n, a in algorithm.initial_carry(B).items()}
    actions = [np.asarray(act(actor, obs[t], carry, none, key_data(seed), np.int32(t), ones)[0]) for t in range(T)]
    boundary, discount = np.zeros((T, B), bool), np.ones((T, B), np.float32)
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    for row, column in (TERMINATED, TRUNCATED):
        boundary[row, column] = True
        valid[row + 1, column], discount[row + 1, column] = False, 0.0
        first[row + 2, column] = True
    discount[TERMINATED] = 0.0
    reward = rng.normal(size=(T, B)).astype(np.float32) * valid
    version = np.zeros((T, B), np.int32)
    return Trajectory(obs, np.stack(actions), reward, discount, boundary, valid, first, {}, carry, version)


class Learnt(NamedTuple):
    """What one gradient on the whole batch comes to."""

    advantage: Any
    grads: Any
    feedback: Any
    state: Any  # after the gradient was applied


@cache
def _learning(algorithm: Any) -> Callable[..., Learnt]:
    def whole(state: Any, acted: Any, tr: Trajectory, drift: Any) -> Learnt:
        after, batch = algorithm.prepare(state, acted, tr, jax.random.key(0))
        after = after._replace(params=jax.tree.map(lambda p: p * drift, after.params))
        grads, feedback = algorithm.gradients(after, batch, jax.random.key(0))
        return Learnt(batch.rows.advantage, grads, feedback, apply(algorithm, after, grads))

    return jax.jit(whole)


def learn(algorithm: Any, tr: Trajectory, state: Any = None, drift: float = 1.0, lag: float = 1.0) -> Learnt:
    """One gradient, without the scan over epochs and minibatches: it compiles in a fraction of the time.

    `drift` multiplies the params between `prepare` and the gradient, as earlier minibatches move them; `lag` those that acted,
    as if they were an older version.
    """
    state = begin(algorithm) if state is None else state
    acted = algorithm.actor_state(state._replace(params=jax.tree.map(lambda p: p * np.float32(lag), state.params)))
    return _learning(algorithm)(state, acted, tr, np.float32(drift))


def changed(tr: Trajectory, **arrays: Callable[[np.ndarray], None]) -> Trajectory:
    """A copy with some arrays edited."""
    copies: dict[str, np.ndarray] = {}
    for name, edit in arrays.items():
        copies[name] = getattr(tr, name).copy()
        edit(copies[name])
    return tr._replace(**copies)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def farthest(a: Any, b: Any) -> float:
    return float(np.abs(to_vector(a) - to_vector(b)).max())


@pytest.mark.parametrize("name", ON_POLICY)
class TestAlgorithm:
    """`core.algorithm.Algorithm`."""

    def test_equal_ones_compile_once(self, name: str) -> None:
        one, other = build(name), build(name)
        assert one is not other and one == other and hash(one) == hash(other)
        assert compiled_update(one) is compiled_update(other)
        assert compiled_update(one) is not compiled_update(build(name, gamma=0.5))

    def test_state_is_arrays_and_what_travels_is_float32(self, name: str) -> None:
        algorithm = make(name, normalise_obs=True, normalise_reward=True)
        state = jax.jit(algorithm.init)(jax.random.key(0))
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
        actor = algorithm.actor_state(state)
        assert "value" not in actor.params and "value" in state.params
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(actor))
        assert layout_of(actor).size < layout_of(state.params).size + 2 * WIDTH
        assert state.step == 0 and state.progress == 0

    @pytest.mark.parametrize("kind", KINDS)
    def test_act_gives_actions_of_the_spec(self, name: str, kind: str) -> None:
        algorithm = make(name, kind)
        actor, carry = algorithm.actor_state(begin(algorithm)), algorithm.initial_carry(B)
        obs = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)
        action, extras, after = compiled_act(algorithm)(
            actor, obs, carry, np.ones(B, bool), key_data(0), np.int32(0), np.ones(B, np.float32)
        )
        spec = algorithm.task.spec.action
        assert action.shape == (B, *spec.shape) and action.dtype == spec.dtype
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, carry)
        assert bool(carry) == (kind == "recurrent") and not extras

    @pytest.mark.parametrize("kind", KINDS)
    def test_greedy_does_not_depend_on_the_key(self, name: str, kind: str) -> None:
        algorithm = make(name, kind)
        actor, carry = algorithm.actor_state(begin(algorithm)), algorithm.initial_carry(B)
        obs = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)

        def actions(explore: float) -> set[bytes]:
            noise, first = np.full(B, explore, np.float32), np.zeros(B, bool)
            return {
                np.asarray(
                    compiled_act(algorithm)(actor, obs, carry, first, key_data(k), np.int32(0), noise)[0]
                ).tobytes()
                for k in range(12)
            }

        assert len(actions(0.0)) == 1 and len(actions(1.0)) > 1

    def test_settle_takes_params_from_anywhere(self, name: str) -> None:
        algorithm = make(name)
        state = begin(algorithm)
        given = jax.tree.map(lambda p: p + 1, state.params)
        after = algorithm.settle(state, given)
        assert params_hash(after.params) == params_hash(given) and int(after.step) == int(state.step) + 1
        assert bits(after.moments) == bits(state.moments)

    def test_adopt_takes_params_and_leaves_all_else(self, name: str) -> None:
        algorithm = make(name, normalise_obs=True, normalise_reward=True)
        state = begin(algorithm)
        given = jax.tree.map(lambda p: p + 1, state.params)
        after = algorithm.adopt(state, given)
        assert params_hash(after.params) == params_hash(given)
        assert bits(after._replace(params=state.params)) == bits(state)

    @pytest.mark.parametrize("kind", ["recurrent"])
    def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not(self, name: str, kind: str) -> None:
        algorithm = make(name, kind, normalise_advantage=False)
        tr = trajectory(algorithm)

        def after(end: tuple[int, int]) -> Callable[[np.ndarray], None]:
            def edit(obs: np.ndarray) -> None:
                obs[end[0] + 1, end[1]] += 1.0

            return edit

        plain = np.asarray(learn(algorithm, tr).advantage)
        np.testing.assert_array_equal(learn(algorithm, changed(tr, obs=after(TERMINATED))).advantage, plain)
        moved = np.asarray(learn(algorithm, changed(tr, obs=after(TRUNCATED))).advantage) != plain
        row, column = TRUNCATED
        assert moved[: row + 1, column].all() and moved.sum() == row + 1, "only its own episode, all of it"

    def test_gradients_are_clipped(self, name: str) -> None:
        quiet, free = make(name, max_grad_norm=1e-3), make(name, max_grad_norm=1e9)
        clipped, whole = learn(quiet, trajectory(quiet)), learn(free, trajectory(quiet))
        norm = float(whole.feedback.metrics["grad_norm"])
        assert norm > 1e-2 and float(np.linalg.norm(to_vector(clipped.grads))) == pytest.approx(1e-3, rel=1e-4)
        np.testing.assert_allclose(to_vector(clipped.grads) * norm / 1e-3, to_vector(whole.grads), rtol=1e-3, atol=1e-6)

    def test_the_optimiser_is_valid_on_any_slice(self, name: str) -> None:
        algorithm = make(name)
        rng = np.random.default_rng(0)
        optimiser, vector = algorithm.optimiser, jnp.zeros(10, jnp.float32)
        whole, parts = optimiser.init(vector), [optimiser.init(vector[:3]), optimiser.init(vector[3:])]
        for _ in range(3):
            grads = jnp.asarray(rng.normal(size=10), jnp.float32)
            expected, whole = optimiser.update(grads, whole, vector)
            first, parts[0] = optimiser.update(grads[:3], parts[0], vector[:3])
            second, parts[1] = optimiser.update(grads[3:], parts[1], vector[3:])
            np.testing.assert_allclose(jnp.concatenate([first, second]), expected, rtol=1e-6)

    def test_update_is_prepare_and_apply_over_minibatches(self, name: str) -> None:
        algorithm = make(name, batch_size=0, **({"epochs": 1} if name == "ppo" else {}))
        tr, state = trajectory(algorithm), begin(algorithm)
        acted = algorithm.actor_state(state)
        whole = compiled_update(algorithm)(state, acted, [tr], key_data(0), np.float32(0))[0]
        by_hand = learn(algorithm, tr).state
        assert farthest(by_hand.params, whole.params) < 1e-6 < farthest(whole.params, state.params)

    def test_statistics_travel_with_the_weights(self, name: str) -> None:
        algorithm = make(name, "box", normalise_obs=True)
        tr = trajectory(algorithm)
        tr = tr._replace(obs=tr.obs * 20 + 100)
        actor = algorithm.actor_state(learn(algorithm, tr).state)
        seen = tr.obs[:-1][tr.valid]
        np.testing.assert_allclose(actor.obs_mean, seen.mean(0), rtol=1e-4)
        np.testing.assert_allclose(1 / actor.obs_scale, seen.std(0), rtol=1e-3)
        # An actor elsewhere sees the vector alone, and acts as one that holds the learner's state.
        there = layout_of(actor).tree(to_vector(actor))
        args = (tr.obs[0], {}, np.zeros(B, bool), key_data(3), np.int32(0), np.ones(B, np.float32))
        act = compiled_act(algorithm)
        assert bits(act(jax.device_put(there), *args)[0]) == bits(act(actor, *args)[0])
        plain = actor._replace(obs_mean=jnp.zeros(WIDTH), obs_scale=jnp.ones(WIDTH))
        assert bits(act(plain, *args)[0]) != bits(act(actor, *args)[0])

    def test_the_learning_rate_falls_with_the_budget(self, name: str) -> None:
        algorithm = make(name, learning_rate=1e-2, final_rate=0.1)
        state = begin(algorithm)
        at = [state._replace(progress=jnp.float32(p)) for p in (0.0, 0.5, 1.0)]
        np.testing.assert_allclose([algorithm.rate(s) for s in at], [1e-2, 5.5e-3, 1e-3], rtol=1e-5)
        steps = [farthest(learn(algorithm, trajectory(algorithm), s).state.params, state.params) for s in at]
        np.testing.assert_allclose(steps, [steps[0], 0.55 * steps[0], 0.1 * steps[0]], rtol=1e-2)


def one_each(kinds: tuple[str, ...]) -> list[Any]:
    """(algorithm, kind): `make test` runs every kind and every algorithm, the product is slow. What is tested is the base's."""
    quick = {(name, kinds[i % len(kinds)]) for i, name in enumerate(ON_POLICY)}
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in product(ON_POLICY, kinds)]


@pytest.mark.parametrize(("name", "kind"), one_each(("mixed", "recurrent")))
def test_update_changes_params_and_leaves_its_inputs_alone(name: str, kind: str) -> None:
    algorithm = make(name, kind, batch_size=16)
    state, tr = begin(algorithm), trajectory(algorithm)
    before = bits((state, tr))
    acted = algorithm.actor_state(state)
    after, actor, metrics = compiled_update(algorithm)(state, acted, [tr], key_data(7), np.float32(0))
    assert bits((state, tr)) == before
    assert jax.tree.structure((after, actor)) == jax.tree.structure((state, acted))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    pairs = zip(*map(jax.tree.leaves, (after.params, state.params)), strict=True)
    assert not any(np.array_equal(a, b) for a, b in pairs), "every weight has a gradient"
    cut = algorithm.minibatches
    assert cut.parts == 2 and int(after.step) == cut.epochs * cut.parts
    assert all(np.isfinite(float(value)) for value in metrics.values())
    assert {"policy", "value", "entropy", "grad_norm"} <= set(metrics)
    assert bits(actor) == bits(algorithm.actor_state(after))


@pytest.mark.parametrize(("name", "kind"), one_each(("discrete", "mixed", "recurrent")))
def test_the_autoreset_row_has_no_effect(name: str, kind: str) -> None:
    normalised = kind != "mixed"
    algorithm = make(name, kind, normalise_obs=normalised, normalise_reward=normalised, batch_size=16)
    tr = trajectory(algorithm)
    rows = [(row + 1, column) for row, column in (TERMINATED, TRUNCATED)]
    assert all(not tr.valid[at] for at in rows)

    def other_actions(action: np.ndarray) -> None:
        for at in rows:
            action[at] = 1 - np.minimum(action[at], 1)

    def other_rewards(reward: np.ndarray) -> None:
        for at in rows:
            reward[at] = 1000.0

    def other_obs(obs: np.ndarray) -> None:  # after a truncation it is the bootstrap, so there it matters
        obs[TERMINATED[0] + 1, TERMINATED[1]] = 50.0

    expected = bits(learn(algorithm, tr))
    for what, edit in {"action": other_actions, "reward": other_rewards, "obs": other_obs}.items():
        other = changed(tr, **{what: edit})
        assert not np.array_equal(getattr(other, what), getattr(tr, what))
        assert bits(learn(algorithm, other)) == expected, what
    valid = changed(tr, action=lambda a: a.__setitem__((0, 0), 1 - np.minimum(a[0, 0], 1)))
    assert bits(learn(algorithm, valid)) != expected, "a row that counts does have an effect"


OFF_POLICY = [name for name in ALGOS if name not in ON_POLICY]


@cache
def with_replay(name: str, **settings: Any) -> Any:
    if name in continuous_algos.NAMES:
        return continuous_algos.make(name, **settings)
    spec = EnvSpec("test", ObsSpec((WIDTH,)), ACTIONS["discrete"])
    config = ALGOS[name].Config(**{"unroll": T, "batch_size": 8, "warmup": 0, **settings})
    return ALGOS[name](config, Task(spec=spec, envs=B), QNetwork(QNetConfig(hidden=(8,)), spec))


def minibatch(algorithm: Any) -> Any:
    if algorithm.task.spec.action.dtype == np.float32:
        return continuous_algos.drawn()
    rows = continuous_algos.drawn().rows
    return continuous_algos.drawn()._replace(rows=rows._replace(action=np.zeros(len(rows.reward), np.int32)))


@pytest.mark.parametrize("name", OFF_POLICY)
class TestReplayAlgorithm:
    """`core.algorithm.Algorithm`, of those that learn from a replay."""

    def test_equal_ones_are_one(self, name: str) -> None:
        one = with_replay(name)
        other = type(one)(dataclasses.replace(one.config), one.task, one.net)
        assert one is not other and one == other and hash(one) == hash(other)
        assert one != with_replay(name, gamma=0.5) and one.replays and isinstance(one.experience, Replay)

    def test_state_is_arrays_and_what_travels_is_float32(self, name: str) -> None:
        algorithm = with_replay(name, normalise_obs=True, normalise_reward=True)
        state = algorithm.init(jax.random.key(0))
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
        actor = algorithm.actor_state(state)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(actor)) and actor.explore
        assert "target" not in actor.params and layout_of(actor).size > 0
        assert state.step == 0 and state.progress == 0

    def test_groups_name_all_params_in_order(self, name: str) -> None:
        algorithm = with_replay(name)
        params = algorithm.init(jax.random.key(0)).params
        assert not algorithm.groups or [group.name for group in algorithm.groups] == sorted(params)

    def test_a_gradient_is_of_every_param_and_tells_errors(self, name: str) -> None:
        algorithm, batch = with_replay(name), minibatch(with_replay(name))
        state = begin_eagerly(algorithm)._replace(step=jnp.int32(1))  # the second gradient moves a delayed policy too
        before = bits(state)
        grads, feedback = algorithm.gradients(state, batch, jax.random.key(0))
        assert jax.tree.structure(grads) == jax.tree.structure(state.params) and bits(state) == before
        assert all(np.any(leaf) for leaf in jax.tree.leaves(grads)), "every weight has a gradient"
        assert feedback.td.shape == batch.weight.shape and not bool(feedback.stop)
        assert feedback.moved is None or feedback.moved.shape == (len(algorithm.groups),)
        assert {"value", "q", "td", "grad_norm"} <= set(feedback.metrics)
        after = apply(algorithm, state, grads, feedback.moved)
        assert jax.tree.structure(after) == jax.tree.structure(state) and int(after.step) == 2
        pairs = zip(*map(jax.tree.leaves, (after.params, state.params)), strict=True)
        assert not any(np.array_equal(a, b) for a, b in pairs)

    def test_weights_of_rows_count(self, name: str) -> None:
        algorithm, batch = with_replay(name), minibatch(with_replay(name))
        state = begin_eagerly(algorithm)
        half = batch._replace(weight=batch.weight * np.float32(0.5))
        losses = [algorithm.gradients(state, b, jax.random.key(0))[1].metrics["value"] for b in (batch, half)]
        assert float(losses[1]) == pytest.approx(0.5 * float(losses[0]), rel=1e-5)

    def test_settle_counts_and_adopt_does_not(self, name: str) -> None:
        algorithm = with_replay(name)
        state = begin_eagerly(algorithm)
        given = jax.tree.map(lambda p: p + 1, state.params)
        settled, adopted = algorithm.settle(state, given), algorithm.adopt(state, given)
        assert params_hash(settled.params) == params_hash(adopted.params) == params_hash(given)
        assert int(settled.step) == 1 and bits(settled.moments) == bits(state.moments)
        assert bits(adopted._replace(params=state.params)) == bits(state)


def begin_eagerly(algorithm: Any) -> Any:
    """A state with params that are not symmetric."""
    state, rng = algorithm.init(jax.random.key(1)), np.random.default_rng(2)
    return state._replace(params=jax.tree.map(lambda p: p + np.float32(rng.normal(size=p.shape)) * 0.3, state.params))


FLIPS: dict[str, Any] = {
    "learning_rate": 0.05,
    "final_rate": 0.5,
    "gamma": 0.5,
    "lam": 0.3,
    "unroll": 4,
    "batch_size": 8,
    "entropy": 0.5,
    "value_weight": 3.0,
    "max_grad_norm": 1e-3,
    "normalise_advantage": None,
    "normalise_obs": True,
    "normalise_reward": True,
    "reward_clip": "sign",
    "reward_scale": 10.0,
    "epochs": 2,
    "clip": 0.01,
    "anneal_clip": True,
    "value_clip": 0.01,
    "target_kl": 1e-4,
    "decay": 0.5,
    "epsilon": 0.1,
    "initial_square": 1.0,
    "final_entropy": 0.0,
    "returns": "vtrace",
    "rho_clip": 0.5,
    "c_clip": 0.5,
    "optimiser": "adam",
    "momentum": 0.3,
    "log_epsilon": 0.5,
}
# What a knob needs beside it to matter.
BESIDE: dict[str, dict[str, Any]] = {
    "final_entropy": {"entropy": 0.5},
    "rho_clip": {"returns": "vtrace"},
    "c_clip": {"returns": "vtrace"},
    "momentum": {"optimiser": "momentum"},
}
SHARED = {field.name for field in dataclasses.fields(OnPolicyConfig)}
IN_LOSSES = ("entropy", "final_entropy", "value_weight")  # every algorithm has a loss of its own


def knobs() -> Iterator[Any]:
    """(algorithm, knob). What the base reads is looked at once in `make test`, and for every algorithm among the slow tests."""
    for name in ON_POLICY:
        for field in dataclasses.fields(ALGOS[name].Config):
            again = field.name in SHARED and field.name not in IN_LOSSES and name != "a2c"
            yield pytest.param(name, field.name, marks=pytest.mark.slow if again else ())


PLAIN = {"learning_rate": 0.02, "final_rate": 0.1}
DRIFT, LAG = 1.2, 0.7
STEPPING = ("optimiser", "decay", "epsilon", "initial_square", "momentum")  # they come after the gradient
SEEN = 1e-3  # of a gradient: hundreds of times what rounding comes to


@pytest.mark.parametrize(("name", "knob"), list(knobs()))
def test_every_knob_is_read(name: str, knob: str) -> None:
    """Another value makes another update. `FLIPS` must know every field, so a new one cannot be forgotten.

    Older weights acted than learn, and the params have moved since `prepare`: where all are equal, ratios are 1, V-trace is GAE
    and nothing is clipped.
    """
    beside = {**PLAIN, **BESIDE.get(knob, {})}
    plain = make(name, **beside)
    value = FLIPS[knob] if FLIPS[knob] is not None else not getattr(plain.config, knob)
    assert value != getattr(plain.config, knob)
    other = make(name, **{**beside, knob: value})
    state = begin(plain)._replace(progress=jnp.float32(0.5))
    shape = [(a.experience, a.minibatches, float(a.rate(state))) for a in (plain, other)]
    if shape[0] != shape[1]:
        return
    tr = trajectory(plain)
    fresh = jax.jit(other.init)(jax.random.key(0))
    if knob == "momentum":  # it shows once there was a step before
        moved = jax.tree.map(jnp.ones_like, fresh.moments)
        state, fresh = state._replace(moments=moved), fresh._replace(moments=moved)
    one = learn(plain, tr, state, drift=DRIFT, lag=LAG)
    given = state._replace(moments=fresh.moments, obs=fresh.obs, reward=fresh.reward)
    two = learn(other, tr, given, drift=DRIFT, lag=LAG)
    # An optimiser's first step may be a gradient's sign, which rounding can turn: only its own knobs are seen there.
    start = to_vector(state.params) * np.float32(DRIFT)
    seen = [to_vector(m.state.params) - start if knob in STEPPING else to_vector(m.grads) for m in (one, two)]
    longest = max(np.linalg.norm(vector) for vector in seen)
    assert bool(one.feedback.stop) != bool(two.feedback.stop) or np.linalg.norm(seen[0] - seen[1]) > SEEN * longest
