"""The booster: its equations, its surrogate, both of its forms, a user's own series, and the regulators."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from shoal.core.errors import BadInput
from shoal.core.keys import episode_seed
from shoal.envs.booster import ids, plant, surrogate
from shoal.envs.booster.gym import BoosterEnv
from shoal.envs.booster.plant import CHANNELS, IMINER, VIMIN
from shoal.envs.booster.regulator import ALPHAS, BASELINES, GAMMAS, follow, regulate, search
from shoal.envs.booster.series import Series, load, read_csv
from shoal.envs.booster.task import ACTIONS, STEPS, Booster
from shoal.envs.source import find
from shoal.experiment import resolve


def test_the_plant_follows_its_equations() -> None:
    """Against the equations written out for one tick, without noise."""
    e, f, d, v, k = 0.3, -0.7, 0.1, 0.02, 8  # on the rising edge: I(8) = -0.5, I(9) = -0.25
    before = plant.Plant(jnp.float32(e), jnp.float32(f), jnp.float32(d), jnp.int32(k))
    after = plant.advance(before, jnp.float32(v), jnp.zeros(3))
    expected = 0.5 * e + 5 * v + 0.15 * f + 0.9 * 0.25 + 0.12 * f * -0.5 + d
    assert np.allclose([after.error, after.frequency, after.drift], [expected, 0.97 * f, 0.9995 * d], rtol=1e-5)
    row = plant.measure(before, jnp.float32(v), jnp.zeros(3))
    assert np.allclose(row, [v, e, f, -0.5, -0.25], rtol=1e-5)


def test_the_series_is_the_same_for_one_seed_and_another_for_another() -> None:
    record = jax.jit(plant.record, static_argnums=(0, 1))
    first, again, other = (np.asarray(record(seed, 200)[0]) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


def test_the_stored_surrogate_fits_the_series_and_a_shorter_fit_agrees() -> None:
    series, stored = load(), surrogate.surrogate()
    assert stored.r2 > 0.94
    again = surrogate.assess(surrogate.fit(series, seed=1, updates=300), series)
    assert again.r2 > 0.93
    assert np.abs(again.residuals - stored.residuals).std() < 0.1  # in standard deviations of IMINER


@pytest.mark.slow
def test_the_stored_weights_can_be_made_again(tmp_path: Path) -> None:
    made = tmp_path / "surrogate.npz"
    assert surrogate.store(made) == pytest.approx(surrogate.surrogate().r2, abs=2e-3)


def test_the_surrogate_with_residuals_repeats_the_recording() -> None:
    """Settings as recorded give IMINER as recorded: what the network does not explain is replayed."""
    env = Booster()
    state = env.reset(jax.random.key(0))[0]._replace(limits=jnp.array([-1.0, 1.0]))
    rows, at = env.series.rows, int(state.row)
    apply = jax.jit(env.apply)
    for tick in range(20):
        state, _, reward, _ = apply(state, rows[at + tick, VIMIN], jax.random.key(0))
        assert float(state.window[-1, IMINER]) == pytest.approx(rows[at + tick + 1, IMINER], abs=1e-3)
        assert float(reward) == pytest.approx(-abs(rows[at + tick + 1, IMINER]), abs=1e-3)


@pytest.mark.parametrize("name", ids.IDS)
def test_gymnasium_accepts_it(name: str) -> None:
    ids.register()
    env = gymnasium.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(3)]
    assert ends == [(False, False)] * 3


def test_settings_are_clipped_and_faults_cost_the_steps_left() -> None:
    env = Booster(plant=True)
    state, _ = env.reset(jax.random.key(1))
    state, _, _, _ = env.apply(state, jnp.float32(9.0), jax.random.key(2))
    assert float(state.window[-1, VIMIN]) == float(state.limits[1])
    far = state._replace(limits=jnp.array([-9.0, 9.0]), steps=jnp.int32(9))
    after, _, reward, terminated = env.apply(far, jnp.float32(9.0), jax.random.key(2))
    error = float(jnp.abs(after.window[-1, IMINER]))
    assert bool(terminated)
    assert error >= 2
    assert float(reward) == pytest.approx(-error - 5 * (STEPS - 10), rel=1e-5)


def test_actions_are_quantiles_of_the_recorded_change() -> None:
    changes = np.diff(load().rows[:, VIMIN])
    discrete = np.array([Booster().change(jnp.int32(a)) for a in range(ACTIONS)])
    assert (np.diff(discrete) > 0).all()
    assert np.mean(changes < discrete[0]) == pytest.approx(0.5 / ACTIONS, abs=1e-3)
    low, high = (float(Booster(continuous=True).change(jnp.array([a]))) for a in (-1.0, 1.0))
    assert (np.mean(changes < low), np.mean(changes < high)) == pytest.approx((0.25, 0.75), abs=1e-3)


@pytest.mark.slow
def test_the_tuned_regulator_is_better_on_the_plant() -> None:
    env = Booster(plant=True)
    given, tuned = (regulate(env, gains, 64).returns.mean() for gains in BASELINES.values())
    assert -30 < given < -15
    assert given + 4 < tuned < -8


def test_the_tuned_gains_are_the_best_of_a_search_on_the_fitted_part() -> None:
    """Around them on the grid, within 1 %: the held-out part, where agents are judged, has no say."""
    env, tuned = Booster(), BASELINES["pi-tuned"]
    at, beside = ALPHAS.index(tuned.alpha), GAMMAS.index(tuned.gamma)
    returns = search(env, ALPHAS[at - 1 : at + 2], GAMMAS[beside - 1 : beside + 2], episodes=200, seed=1)
    assert returns[1, 1] >= 1.01 * returns.max()  # returns are negative
    assert returns[1, 1] == pytest.approx(regulate(env, tuned, 200, seed=1).returns.mean(), rel=1e-4)


def test_shoal_steps_batches_in_jax_and_judges_on_the_plant() -> None:
    source = find("shoal/Booster-v0")
    assert (source.backend, source.jax_env()) == ("jax", Booster())
    assert find("shoal/Booster-v0", "gymnasium").backend == "gymnasium"
    judge = source.single()
    judge.reset(0)
    assert judge._env.unwrapped.booster == Booster(plant=True)  # type: ignore[attr-defined]
    judge.close()


def write(path: Path, rows: np.ndarray, names: tuple[str, ...] = CHANNELS) -> str:
    path.write_text("\n".join([",".join(names), *(",".join(f"{x:.6g}" for x in row) for row in rows)]))
    return str(path)


def test_a_users_series_replaces_the_synthetic_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surrogate, "fit", partial(surrogate.fit, updates=200))  # enough for 3,000 rows
    names = ("time", "B:VIMIN", "B:IMINER", "B:LINFRQ", "I:IB", "I:MDAT40")
    rows = load().rows[:3000]
    path = write(tmp_path / "own.csv", np.column_stack([np.arange(len(rows)), rows]), names)
    env = Booster(data=path)
    assert np.allclose(env.series.rows, rows, atol=1e-4)
    assert env.r2 > 0.8
    assert f"R2 {env.r2:.3f}" in caplog.text
    obs, reward = jax.jit(lambda key: env.step(env.reset(key)[0], jnp.int32(3), key)[1:3])(jax.random.key(0))
    assert obs.shape == (5,)
    assert reward < 0
    with pytest.raises(BadInput, match="no plant"):
        Booster(data=path, plant=True)


@pytest.mark.parametrize("continuous", [False, True])
def test_agents_on_a_users_series_are_judged_on_rows_they_did_not_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continuous: bool
) -> None:
    """Every tick of an evaluation lies in the held-out part, even of the shortest series that is accepted."""
    monkeypatch.setattr(surrogate, "fit", partial(surrogate.fit, updates=2))
    env = Booster(data=write(tmp_path / "own.csv", load().rows[:1000]), continuous=continuous)
    judge = find(env).single()
    action = np.zeros(1, np.float32) if continuous else np.int64(3)
    stepped = set[int]()
    for seed in range(30):
        judge.reset(seed)
        judge.step(action)
        row = int(judge._carry.state.row[0])  # type: ignore[attr-defined]
        stepped |= {row, row + STEPS - 1}
    assert env.series.split <= min(stepped) < env.series.split + 20
    assert len(env.series.rows) - 20 < max(stepped) < len(env.series.rows)
    trained = jax.vmap(lambda key: env.reset(key)[0].row)(jax.random.split(jax.random.key(0), 200))
    assert int(trained.max()) + STEPS < env.series.split


def test_an_object_is_judged_where_its_id_is() -> None:
    judge = find(Booster()).single()
    assert judge._batched.env == Booster(plant=True)  # type: ignore[attr-defined]
    assert Booster(plant=True).judged == Booster(plant=True)


def test_a_series_of_ones_own_finds_the_settings_of_the_task(tmp_path: Path) -> None:
    env = Booster(data=write(tmp_path / "own.csv", load().rows[:1000]))
    own, known = (resolve(target, {"algo": "dqn", "runtime": "fused"}) for target in (env, "shoal/Booster-v0"))
    assert own.algo == known.algo and own.net == known.net and own.settings.steps == known.settings.steps == 100_000


def test_an_unusable_series_is_refused_by_one_line(tmp_path: Path) -> None:
    rows = load().rows[:1200].copy()
    path = tmp_path / "own.csv"
    with pytest.raises(BadInput, match="cannot be read"):
        Booster(data=str(tmp_path / "none.csv"))
    with pytest.raises(BadInput, match="lacks MDAT40: it must have"):
        read_csv(Path(write(path, rows[:, :4], CHANNELS[:4])))
    with pytest.raises(BadInput, match="has 50 rows: at least 1000"):
        read_csv(Path(write(path, rows[:50])))
    rows[7, 2] = np.nan
    with pytest.raises(BadInput, match="LINFRQ of row 8 is 'nan'"):
        read_csv(Path(write(path, rows)))
    held = load().rows[:1200].copy()
    held[:, VIMIN] = np.repeat(held[::10, VIMIN], 10)  # a setting that changes every tenth tick
    with pytest.raises(BadInput, match="VIMIN changes by 0 in half of the rows or more"):
        read_csv(Path(write(path, held)))
    rows[:, 2] = 103.4  # its deviation is not 0 in single precision
    with pytest.raises(BadInput, match="LINFRQ never changes"):
        read_csv(Path(write(path, rows)))
    with pytest.raises(BadInput, match="has several columns VIMIN: each may occur once"):
        read_csv(Path(write(path, np.column_stack([rows, rows[:, 0]]), (*CHANNELS, "B:VIMIN"))))


def test_a_long_series_keeps_its_mean() -> None:
    rows = np.random.default_rng(0).normal(103.4, 0.05, (250_000, 5)).astype(np.float32)
    series = Series("own", rows)
    np.testing.assert_allclose(series.mean, rows.astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(series.scale, 0.05, rtol=0.02)


def test_a_first_line_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "own.csv", load().rows[:1200]))
    path.write_text("\ufeff" + path.read_text())
    assert read_csv(path).shape == (1200, 5)


def test_a_series_has_the_units_of_its_channels() -> None:
    rows = np.random.default_rng(0).normal(3.0, 2.0, (1000, 5)).astype(np.float32)
    series = Series("own", rows)
    assert np.allclose(series.mean, 3, atol=0.3)
    assert np.allclose(series.scale, 2, atol=0.3)
    assert series.split == 800


def test_regulators_have_the_starts_and_the_noise_of_an_agents_evaluation() -> None:
    """Against the regulator's equations, one tick at a time, on the Gymnasium form with the seeds that evaluation uses."""
    ids.register()
    env = gymnasium.make("shoal/BoosterPlant-v0").unwrapped
    assert isinstance(env, BoosterEnv)
    gains, centre = BASELINES["pi-tuned"], float(load().mean[VIMIN])
    apply = jax.jit(env.booster.apply)
    for episode in range(3):
        env.reset(seed=episode_seed(7, episode))
        assert env._state is not None
        state, beta, ret = env._state, 0.0, 0.0
        for _ in range(STEPS):
            error = float(state.window[-1, IMINER])
            key = jax.random.key(np.uint32(env.np_random.integers(2**32)))
            state, _, reward, _ = apply(state, centre - gains.alpha * error - beta, key)
            beta, ret = beta + gains.gamma * error, ret + float(reward)
        assert regulate(env.booster, gains, 3, seed=7).returns[episode] == pytest.approx(ret, rel=1e-4)


def test_following_an_agent_is_its_evaluation() -> None:
    """`follow` plays the first episode of `shoal eval --seed`: greedy, the same return."""
    ids.register()
    env = gymnasium.make("shoal/BoosterPlant-v0")

    def policy(obs: np.ndarray) -> int:
        return int(np.clip(15 - 6 * obs[IMINER], 0, ACTIONS - 1))

    obs, _ = env.reset(seed=episode_seed(7, 0))
    ret, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
        ret, ended = ret + float(reward), terminated or truncated
    assert follow(Booster(plant=True), policy, seed=7).returns[0] == pytest.approx(ret, rel=1e-4)


def test_an_agent_meets_the_disturbances_of_the_regulators() -> None:
    """A policy that makes the changes of the regulator as given, rounded to actions, follows it closely."""
    env = Booster(plant=True)
    gains = BASELINES["pi"]
    mean, scale = env.series.mean, env.series.scale
    changes = np.array([env.change(jnp.int32(a)) for a in range(ACTIONS)])

    def policy(obs: np.ndarray) -> int:
        setting, error = (obs * scale + mean)[[VIMIN, IMINER]]
        return int(np.abs(changes - (mean[VIMIN] - gains.alpha * error - setting)).argmin())

    pi, agent = regulate(env, gains, 1, seed=5), follow(env, policy, seed=5)
    assert agent.returns.shape == (1,)
    assert np.corrcoef(pi.errors[0], agent.errors[0])[0, 1] > 0.8
    assert agent.returns[0] == pytest.approx(-np.abs(agent.errors).sum(), rel=1e-4)
