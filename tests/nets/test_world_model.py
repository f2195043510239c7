"""The world model: shapes, its loss against the definition, and that it learns what it is shown."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.weights import layout_of
from shoal.nets.world_model import Prediction, Scales, WorldModel, disagreement, errors, step_of

K, N, A, WIDTH = 3, 5, 2, 4
MODEL = WorldModel(inputs=WIDTH, actions=A, hidden=(8,), members=K)


def scales(rng: np.random.Generator) -> Scales:
    def spread() -> np.ndarray:
        return rng.uniform(0.5, 2.0, WIDTH).astype(np.float32)

    mean = rng.normal(size=(2, WIDTH)).astype(np.float32)
    return Scales(mean[0], spread(), mean[1], spread(), *np.float32([0.3, 1.7, 1.0]), mean[0], mean[0])


def test_every_member_begins_differently_and_weights_are_one_vector() -> None:
    params = MODEL.init(jax.random.key(0))
    first = params["trunk"]["hidden0"]["w"]
    assert first.shape == (K, WIDTH + A, 8) and not np.allclose(first[0], first[1])
    assert layout_of(params).size == K * ((WIDTH + A) * 8 + 8 + 8 * (WIDTH + 2) + WIDTH + 2)


def test_a_member_sees_the_same_whether_asked_alone_or_with_others() -> None:
    rng = np.random.default_rng(0)
    params, units = MODEL.init(jax.random.key(1)), scales(rng)
    obs, action = rng.normal(size=(N, WIDTH)).astype(np.float32), rng.integers(0, A, N)
    together = MODEL.predict(params, units, obs, action)
    own = MODEL.predict_own(params, units, np.broadcast_to(obs, (K, N, WIDTH)), np.broadcast_to(action, (K, N)))
    assert together.change.shape == (K, N, WIDTH) and together.reward.shape == together.logit.shape == (K, N)
    for a, b in zip(together, own, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    other = MODEL.predict(params, units, obs, 1 - action)
    assert not np.allclose(together.change, other.change, atol=1e-4)  # the action matters


def test_errors_are_mse_mse_and_balanced_bce_as_the_definition_says() -> None:
    rng = np.random.default_rng(1)
    units = scales(rng)
    told = Prediction(rng.normal(size=(K, N, WIDTH)), rng.normal(size=(K, N)), rng.normal(size=(K, N)))
    obs, next_obs = rng.normal(size=(2, N, WIDTH))
    reward, done = rng.normal(size=N), np.array([True, False, False, True, False])
    state = reward_error = cross = 0.0
    for k in range(K):
        for i in range(N):
            for j in range(WIDTH):
                change = (next_obs[i, j] - obs[i, j] - units.change_mean[j]) / units.change_std[j]
                state += (told.change[k, i, j] - change) ** 2 / (K * N * WIDTH)
            reward_error += (told.reward[k, i] - (reward[i] - 0.3) / 1.7) ** 2 / (K * N)
            p = 1 / (1 + np.exp(-told.logit[k, i]))
            # 2 of 5 rows are ends: each end weighs 1/2 : 2/5, each other row 1/2 : 3/5.
            cross -= (5 / 4 if done[i] else 5 / 6) * np.log2(p if done[i] else 1 - p) / (K * N)
    found = errors(told, units, obs, next_obs, reward, done)
    np.testing.assert_allclose([found.state, found.reward, found.done], [state, reward_error, cross], rtol=1e-4)
    assert float(found.total) == pytest.approx(state + reward_error + cross, rel=1e-4)


def test_a_step_follows_one_member_and_comes_back_in_the_environments_units() -> None:
    rng = np.random.default_rng(2)
    units = scales(rng)
    told = Prediction(*(jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((K, N, WIDTH), (K, N), (K, N))))
    obs, member = rng.normal(size=(N, WIDTH)).astype(np.float32), np.array([0, 2, 1, 1, 0])
    made = step_of(told, units, obs, member)
    for i, k in enumerate(member):
        change = np.asarray(told.change)[k, i] * units.change_std + units.change_mean
        np.testing.assert_allclose(made.obs[i], obs[i] + change, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(made.reward[i], told.reward[k, i] * 1.7 + 0.3, rtol=1e-4, atol=1e-5)
        assert bool(made.done[i]) == (told.logit[k, i] > 0)


def test_disagreement_is_none_where_all_say_the_same() -> None:
    same = Prediction(jnp.ones((K, N, WIDTH)), jnp.ones((K, N)), jnp.ones((K, N)))
    np.testing.assert_array_equal(disagreement(same), np.zeros(N))
    apart = Prediction(jnp.arange(K, dtype=jnp.float32)[:, None, None] * jnp.ones((K, N, WIDTH)), *same[1:])
    np.testing.assert_allclose(disagreement(apart), np.full(N, np.std([0, 1, 2])), rtol=1e-6)


def test_ends_that_are_never_foreseen_are_an_error_as_large_as_guessing() -> None:
    rng = np.random.default_rng(4)
    done = np.arange(100) < 4
    never = Prediction(jnp.zeros((K, 100, WIDTH)), jnp.zeros((K, 100)), jnp.full((K, 100), -3.0))
    obs = rng.normal(size=(100, WIDTH))
    assert float(errors(never, scales(rng), obs, obs, done * 0.0, done).done) > 1.0


def linear(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """A world that can be learnt: the action pushes, the third entry decays, far to the right it ends."""
    obs = rng.normal(size=(n, WIDTH)).astype(np.float32)
    action = rng.integers(0, A, n).astype(np.int32)
    push = np.where(action == 1, 0.2, -0.2).astype(np.float32)
    change = np.stack([push, 0.1 * obs[:, 0], -0.3 * obs[:, 2], 0 * push], -1)
    following = (obs + change).astype(np.float32)
    return {"obs": obs, "action": action, "next_obs": following, "reward": obs[:, 1], "done": following[:, 0] > 1.0}


@pytest.mark.slow
def test_it_learns_a_small_world_and_its_members_agree_there_alone() -> None:
    rng = np.random.default_rng(3)
    rows, fresh = linear(rng, 2048), linear(rng, 512)
    change = rows["next_obs"] - rows["obs"]
    units = Scales(rows["obs"].mean(0), rows["obs"].std(0), change.mean(0), change.std(0) + 1e-6, *(
        np.float32(f(rows["reward"])) for f in (np.mean, np.std)
    ), np.float32(1), rows["obs"].min(0), rows["obs"].max(0))  # fmt: skip
    model = WorldModel(inputs=WIDTH, actions=A, hidden=(32, 32), members=K)

    def loss(params: Any, rows: dict[str, Any]) -> Any:
        told = model.predict(params, units, rows["obs"], rows["action"])
        return errors(told, units, rows["obs"], rows["next_obs"], rows["reward"], rows["done"]).total

    @jax.jit
    def train(params: Any, keys: Any) -> Any:
        def one(carry: Any, key: Any) -> Any:
            params, m, v = carry
            picked = jax.random.randint(key, (128,), 0, 2048)
            g = jax.grad(loss)(params, {name: jnp.asarray(a)[picked] for name, a in rows.items()})
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
            return (jax.tree.map(lambda p, m, v: p - 3e-3 * m / (jnp.sqrt(v) + 1e-8), params, m, v), m, v), None

        zero = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(one, (params, zero, zero), keys)[0][0]

    params = model.init(jax.random.key(0))
    before = float(loss(params, fresh))
    params = train(params, jax.random.split(jax.random.key(1), 1000))
    after = float(loss(params, fresh))
    assert before > 2.0 and after < 0.15
    near = model.predict(params, units, fresh["obs"], fresh["action"])
    far = model.predict(params, units, fresh["obs"] * 6.0, fresh["action"])
    assert float(disagreement(far).mean()) > 5 * float(disagreement(near).mean())
    made = step_of(near, units, fresh["obs"], np.zeros(512, int))
    assert np.mean(np.asarray(made.done) == fresh["done"]) > 0.97
    assert float(np.abs(made.obs - fresh["next_obs"]).mean()) < 0.02
