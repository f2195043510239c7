"""Dyna-Q: DQN's parts stay DQN's, what is imagined follows the model and its own mask, bad settings are named."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continuous_algos import bits
from test_dqn import FLIPS as OF_DQN
from test_dqn import OF_SEQUENCES

from shoal.algos.dqn import DQN, DQNConfig
from shoal.algos.dyna_q import CANDIDATES, DynaQ, DynaQConfig
from shoal.core.algorithm import Drawn, Moments, Task
from shoal.core.errors import BadInput
from shoal.core.keys import key_data
from shoal.core.spec import ActionSpec, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Trajectory, Transitions
from shoal.core.weights import params_hash
from shoal.learning.compiled_update import apply
from shoal.nets.q_network import QNetConfig, QNetwork
from shoal.nets.world_model import Scales
from shoal.roles.planner import compiled_planner

T, B, WIDTH, A = 6, 4, 3, 2
DISCRETE = ActionSpec((Categorical((A,)),), scalar=True)
SPEC = EnvSpec("test", ObsSpec((WIDTH,)), DISCRETE)
WIDE, ONE = np.ones(WIDTH, np.float32), np.ones((), np.float32)
UNITS = Scales(0 * WIDE, WIDE, 0 * WIDE, WIDE, 0 * ONE, ONE, ONE, -8 * WIDE, 8 * WIDE)  # and nobody has been beyond 8


@cache
def make(**settings: Any) -> DynaQ:
    small = {
        "unroll": T,
        "batch_size": 8,
        "warmup": 8,
        "capacity": 64,
        "starts": 16,
        "horizon": 5,
        "model_hidden": (8,),
    }
    return DynaQ(DynaQConfig(**{**small, **settings}), Task(SPEC, B), QNetwork(QNetConfig(hidden=(8,)), SPEC))


def rows(n: int, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    obs, following = rng.normal(size=(2, n, WIDTH)).astype(np.float32)
    action = rng.integers(0, A, n).astype(np.int32)
    return Transitions(obs, action, rng.normal(size=n).astype(np.float32), np.full(n, 0.9, np.float32), following)


def scripted(algorithm: DynaQ, change: Any, reward: float, logit: float) -> Any:
    """A model that says the same of everything: its weights are zero, its biases speak."""
    params = jax.tree.map(jnp.zeros_like, algorithm.model.init(jax.random.key(0)))
    bias = jnp.concatenate([jnp.asarray(change, jnp.float32), jnp.asarray([reward, logit], jnp.float32)])
    params["head"]["b"] = jnp.broadcast_to(bias, params["head"]["b"].shape)
    return params


def imagine(algorithm: DynaQ, params: Any, explorer: bool = False, seed: int = 0, units: Scales = UNITS) -> Any:
    actor = algorithm.actor_state(algorithm.init(jax.random.key(0)))
    candidates = rows(CANDIDATES * algorithm.config.starts, seed)
    return compiled_planner(algorithm, explorer).imagine(params, units, actor, candidates, key_data(seed))


def trajectory() -> Trajectory:
    rng = np.random.default_rng(0)
    valid, boundary, discount = np.ones((T, B), bool), np.zeros((T, B), bool), np.ones((T, B), np.float32)
    boundary[2, 0], discount[2, 0], valid[3, 0] = True, 0.0, False  # terminated, then the autoreset row
    obs = rng.normal(size=(T + 1, B, WIDTH)).astype(np.float32)
    obs[4, 0] = 1e3  # what the autoreset row leads to: nobody may learn from it
    action = rng.integers(0, A, (T, B)).astype(np.int32)
    reward = np.ones((T, B), np.float32)
    first, version = np.zeros((T + 1, B), bool), np.zeros((T, B), np.int32)
    return Trajectory(obs, action, reward, discount, boundary, valid, first, {}, {}, version)


def test_real_experience_goes_dqns_way() -> None:
    algorithm = make()
    plain = DQN(DQNConfig(unroll=T, batch_size=8, warmup=8, capacity=64), algorithm.task, algorithm.net)
    key = jax.random.key(3)
    a, b = algorithm.init(key), plain.init(key)
    assert params_hash(a.params) == params_hash(b.params) and algorithm.experience == plain.experience
    (_, kept), (_, expected) = (x.prepare(s, None, trajectory(), key) for x, s in ((algorithm, a), (plain, b)))
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_models_units_come_from_real_steps_that_count() -> None:
    algorithm = make()
    state, kept = algorithm.prepare(algorithm.init(jax.random.key(0)), None, trajectory(), jax.random.key(0))
    valid = np.asarray(kept.valid)
    obs, following = np.asarray(kept.rows.obs)[valid], np.asarray(kept.rows.next_obs)[valid]
    found = algorithm.scales(state)
    np.testing.assert_allclose(found.obs_mean, obs.mean(0), atol=1e-3)
    np.testing.assert_allclose(found.change_std, (following - obs).std(0), rtol=1e-3, atol=1e-3)
    assert float(state.extra["seen"]["obs"].count) == valid.sum() == T * B - 1
    np.testing.assert_array_equal(found.obs_low, obs.min(0))
    np.testing.assert_array_equal(found.obs_high, obs.max(0))
    assert found.inside(obs).all() and not found.inside(found.obs_high + 0.1)


def test_a_branch_is_what_the_model_says_step_by_step() -> None:
    algorithm = make(sweeping=False)
    made = imagine(algorithm, scripted(algorithm, [0.5, 0.0, -0.25], reward=2.0, logit=-3.0))
    got = jax.tree.map(np.asarray, made.rows)
    assert got.obs.shape == (5, 16, WIDTH) and np.asarray(made.valid).all()
    np.testing.assert_allclose(got.next_obs - got.obs, np.broadcast_to([0.5, 0, -0.25], got.obs.shape), atol=1e-5)
    np.testing.assert_array_equal(got.obs[1:], got.next_obs[:-1])
    np.testing.assert_allclose(got.reward, 2.0, rtol=1e-6)
    np.testing.assert_allclose(got.discount, algorithm.config.gamma, rtol=1e-6)
    starts = rows(CANDIDATES * 16).obs
    assert all((starts == start).all(1).any() for start in got.obs[0])  # real states
    assert len({tuple(start) for start in got.obs[0].tolist()}) == 16  # none twice


def test_the_mask_ends_with_the_episode_and_its_last_step_counts() -> None:
    algorithm = make()
    made = imagine(algorithm, scripted(algorithm, [0.1] * 3, reward=1.0, logit=3.0))  # every step is the last
    valid = np.asarray(made.valid)
    assert valid[0].all() and not valid[1:].any()
    np.testing.assert_array_equal(np.asarray(made.rows.discount)[0], 0.0)


def test_imagination_ends_where_nothing_real_has_been() -> None:
    algorithm = make()
    made = imagine(algorithm, scripted(algorithm, [6.0, 0.0, 0.0], reward=0.0, logit=-3.0))
    valid, following = np.asarray(made.valid), np.asarray(made.rows.next_obs)
    assert valid[0].any() and not valid[3:].any()  # 6, 12, ...: beyond 8 after a step or two
    assert (np.abs(following[valid]) <= 8.0).all() and np.isfinite(following).all()


def test_an_end_where_nothing_real_has_been_counts() -> None:
    """Ends lie beyond where anybody acts; an episode that goes on there has missed its end."""
    algorithm = make()
    made = imagine(algorithm, scripted(algorithm, [99.0, 0.0, 0.0], reward=0.0, logit=3.0))
    assert np.asarray(made.valid)[0].all()


def test_sweeping_starts_where_values_err_most() -> None:
    swept, plain = make(starts=8, sweeping=True), make(starts=8)
    candidates = rows(CANDIDATES * 8)
    loud = candidates.obs[:, 0] > np.median(candidates.obs[:, 0])
    candidates = candidates._replace(reward=np.where(loud, 100.0, 0.0).astype(np.float32))
    actor = swept.actor_state(swept.init(jax.random.key(0)))

    def share(algorithm: DynaQ) -> float:
        params = algorithm.model.init(jax.random.key(0))
        play = compiled_planner(algorithm, False).imagine
        found = [play(params, UNITS, actor, candidates, key_data(s)) for s in range(20)]
        starts = np.concatenate([np.asarray(one.rows.obs)[0, :, 0] for one in found])
        return float(np.mean(starts > np.median(candidates.obs[:, 0])))

    assert share(swept) > 0.9 and 0.35 < share(plain) < 0.65


def test_sweeping_weighs_errors_in_the_units_of_the_values() -> None:
    """Values of 1 are right where the reward is one unit of 50; they err where it is 0."""
    algorithm = make(starts=8, sweeping=True, normalise_reward=True, alpha=1.0)
    state = algorithm.init(jax.random.key(0))
    moments = Moments(jnp.float32(1000.0), jnp.float32(0.0), jnp.float32(1000.0 * 50.0**2))
    assert state.reward is not None
    params = jax.tree.map(jnp.zeros_like, state.params)
    params["q"]["head"]["b"] = jnp.ones_like(params["q"]["head"]["b"])
    state = state._replace(params=params, reward=state.reward._replace(moments=moments))
    candidates = rows(CANDIDATES * 8)
    right = np.arange(CANDIDATES * 8) % 2 == 0
    reward = np.where(right, 50.0, 0.0).astype(np.float32)
    candidates = candidates._replace(reward=reward, discount=np.zeros_like(reward))
    play = compiled_planner(algorithm, False).imagine
    made = play(
        algorithm.model.init(jax.random.key(0)),
        algorithm.scales(state),
        algorithm.actor_state(state),
        candidates,
        key_data(0),
    )
    starts = np.asarray(made.rows.obs)[0]
    assert not any((candidates.obs[right] == start).all(1).any() for start in starts)


@pytest.mark.parametrize("normalise", [False, True])
def test_planners_and_learner_find_the_same_errors(normalise: bool) -> None:
    algorithm = make(normalise_reward=normalise, normalise_obs=normalise)
    state, _ = algorithm.prepare(algorithm.init(jax.random.key(0)), None, trajectory(), jax.random.key(0))
    drawn = rows(8)
    _, feedback = algorithm.gradients(state, Drawn(drawn, jnp.ones(8)), jax.random.key(0))
    found = algorithm._td(algorithm.actor_state(state), algorithm.scales(state), drawn)
    np.testing.assert_allclose(found, feedback.td, rtol=1e-5, atol=1e-6)


def test_the_bonus_is_in_the_units_of_the_values() -> None:
    """So that it weighs the same, whatever the environment pays."""
    paid, free = (make(starts=8, bonus=bonus, normalise_reward=True) for bonus in (0.5, 0.0))
    params = jax.tree.map(lambda x: 30.0 * x, paid.model.init(jax.random.key(0)))

    def gain(unit: float) -> np.ndarray:
        units = UNITS._replace(reward_unit=np.float32(unit))
        one, other = (np.asarray(imagine(x, params, True, units=units).rows.reward)[0] for x in (paid, free))
        return (one - other) / unit

    np.testing.assert_allclose(gain(50.0), gain(1.0), rtol=1e-3, atol=1e-4)
    assert (gain(1.0) > 0.01).all()


def test_explorers_seek_what_the_model_knows_least_and_are_paid_for_it() -> None:
    algorithm = make(starts=8, bonus=0.5)
    params = jax.tree.map(lambda x: x, algorithm.model.init(jax.random.key(0)))
    # Members differ about action 1 alone: its column of the first layer is read differently by each.
    first = params["trunk"]["hidden0"]["w"]
    first = jnp.broadcast_to(first[:1], first.shape).at[:, WIDTH].set(0.0)
    params = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), params)
    first = first.at[:, WIDTH + 1].set(jnp.arange(algorithm.model.members)[:, None] * 3.0)
    params["trunk"]["hidden0"]["w"] = first
    params["head"]["w"] = params["head"]["w"] * 100.0
    explorer, planner = imagine(algorithm, params, explorer=True), imagine(algorithm, params)
    valid = np.asarray(explorer.valid)
    assert valid.any() and (np.asarray(explorer.rows.action)[valid] == 1).all()
    assert (np.asarray(planner.rows.action) == 0).any()
    free = imagine(make(starts=8, bonus=0.0), params, explorer=True)
    gain = np.asarray(explorer.rows.reward)[0] - np.asarray(free.rows.reward)[0]
    assert (gain > 0.01).all()
    assert float(explorer.disagreement) > 0


def test_the_ratio_follows_the_error_only_where_asked() -> None:
    follows, stays = make(tolerance=0.5), make(adapt=False)
    assert [follows.ratio(0.0, e) for e in (0.0, 0.25, 0.5, 9.0)] == [4.0, 2.0, 0.0, 0.0]
    assert stays.ratio(0.0, 9.0) == 4.0


def test_the_ratio_falls_in_a_straight_line() -> None:
    assert [make().ratio(p, 0.0) for p in (0.0, 0.25, 1.0, 1.1)] == [4.0, 3.0, 0.0, 0.0]
    assert make(ratio=2.0, final_ratio=1.0).ratio(0.5, 0.0) == 1.5


def test_training_lowers_the_error_on_held_out_rows() -> None:
    algorithm = make(members=2, model_rate=1e-2)
    params = algorithm.model.init(jax.random.key(0))
    moments = algorithm.model_optimiser.init(params)

    def world(n: int, seed: int) -> Transitions:
        made = rows(n, seed)
        push = np.where(made.action == 1, 1.0, -1.0)[:, None]
        return made._replace(next_obs=(made.obs + push).astype(np.float32), reward=made.obs[:, 0])

    batches = jax.tree.map(lambda x: x.reshape(200, 2, 32, *x.shape[1:]), world(200 * 2 * 32, 1))
    judges = world(256, 2)
    before = algorithm.model_errors(params, UNITS, judges)
    params, _, loss = jax.jit(algorithm.train_model)(params, moments, UNITS, batches)
    after = algorithm.model_errors(params, UNITS, judges)
    assert float(after.state) < 0.1 * float(before.state) and float(after.done) < float(before.done)
    assert float(after.total) < float(loss) < float(before.total)


FLIPS: dict[str, Any] = {
    **OF_DQN,
    "ratio": 2.0,
    "final_ratio": 1.0,
    "adapt": False,
    "tolerance": 0.9,
    "horizon": 2,
    "starts": 4,
    "random_share": 0.9,
    "sweeping": True,
    "bonus": 3.0,
    "model_hidden": (4,),
    "members": 2,
    "model_rate": 0.1,
}
ELSEWHERE = (
    *OF_SEQUENCES,
    "n_step",  # must be 1
    *("mix", "imagined", "model_batch", "model_gradients", "holdout"),  # read by roles: tests/topologies/test_dyna.py
)


@pytest.mark.parametrize("knob", [f.name for f in dataclasses.fields(DynaQConfig) if f.name not in ELSEWHERE])
def test_every_knob_is_read(knob: str) -> None:
    """Another value keeps, learns, models or imagines in another way. `FLIPS` must know every field."""
    beside = {"target_every": 2} if knob == "tau" else {}
    beside |= {"epsilon_start": 0.0, "epsilon_end": 0.0} if knob == "random_share" else {}
    plain, other = make(**beside), make(**{**beside, knob: FLIPS[knob]})
    assert getattr(plain.config, knob) != FLIPS[knob]

    def quick(algorithm: DynaQ) -> list[Any]:
        state = algorithm.init(jax.random.key(0))._replace(progress=jnp.float32(0.15))
        found = [algorithm.experience, float(algorithm.rate(state)), algorithm.ratio(0.5, 0.1)]
        return [*found, bits(algorithm.actor_state(state).explore), bits(state)]

    def learnt(algorithm: DynaQ) -> list[Any]:
        unroll = trajectory()
        unroll = unroll._replace(reward=3 * unroll.reward)
        state, kept = algorithm.prepare(algorithm.init(jax.random.key(0)), None, unroll, jax.random.key(0))
        apart = algorithm.init(jax.random.key(1)).params  # the target differs from the weights
        state = state._replace(extra={**state.extra, "target": apart})
        for seed in range(2):
            drawn = Drawn(
                rows(8, seed)._replace(reward=3 * rows(8, seed).reward), np.linspace(0.1, 1, 8, dtype=np.float32)
            )
            grads, _ = algorithm.gradients(state, drawn, jax.random.key(seed))
            state = apply(algorithm, state, grads)
        return [bits(kept), bits(state)]

    def imagined(algorithm: DynaQ) -> list[Any]:
        params = algorithm.model.init(jax.random.key(0))
        batches = jax.tree.map(lambda x: x.reshape(1, algorithm.model.members, -1, *x.shape[1:]), rows(24))
        trained = algorithm.train_model(params, algorithm.model_optimiser.init(params), UNITS, batches)
        return [bits(trained), *(bits(imagine(algorithm, params, explorer)) for explorer in (False, True))]

    assert any(part(plain) != part(other) for part in (quick, learnt, imagined))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"n_step": 2}, "--algo.n-step is 2: the world model learns single steps"),
        ({"holdout": 0.0}, "--algo.holdout is 0: expected more than 0"),
        ({"model_hidden": ()}, "--algo.model-hidden is empty"),
        ({"batch_size": 100}, "--algo.batch-size is 100: more than the replay holds"),
        ({"imagined": 7}, r"--algo.imagined is 7: fewer rows than a minibatch has \(--algo.batch-size 8\)"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        make(**settings)


@pytest.mark.parametrize(
    ("obs", "action", "told"),
    [
        (ObsSpec((8, 8, 3), "uint8"), DISCRETE, "observations are images"),
        (ObsSpec((3,)), ActionSpec((Continuous((-1.0,), (1.0,)),)), "action values need one Discrete space"),
    ],
)
def test_spaces_that_it_cannot_model_are_named(obs: ObsSpec, action: ActionSpec, told: str) -> None:
    spec = EnvSpec("test", obs, action)
    net = QNetwork(QNetConfig(), SPEC)
    with pytest.raises(BadInput, match=told):
        DynaQ(DynaQConfig(), Task(spec, B), net)
