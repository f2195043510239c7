"""The decision process: both forms give the same transitions, and what fails is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.trajectory import trajectory_record
from shoal.envs.autoreset import Rows
from shoal.envs.jax_envs import JaxBatch
from shoal.optimize import Problem
from shoal.optimize.mdp import ProblemSource, TuningBatch, TuningEnv, env_spec

KNOBS = {"x": (-2.0, 6.0), "mode": [10, 20, 30], "n": range(2, 7)}
CONDITIONS = {"c": (0.0, 4.0)}
T, B = 2, 5


def f(x: Any, mode: Any, n: Any, c: Any) -> Any:
    return (x - c) ** 2 + 0.1 * mode + (n - c) ** 2


def problem(kind: str, function: Any = f, **more: Any) -> Problem:
    return Problem(function, knobs=KNOBS, conditions=CONDITIONS, kind=kind, name="f", **more)


def starts(seed: int = 0) -> np.ndarray:
    return problem("python").sample(np.random.default_rng(seed), B).astype(np.float32)


def actions(seed: int = 1, steps: int = T) -> np.ndarray:
    """Some of them out of the box."""
    rng = np.random.default_rng(seed)
    real = rng.normal(0, 1, (steps, B))
    return np.stack([real, rng.integers(3, size=(steps, B)), rng.integers(5, size=(steps, B))], -1).astype(np.float32)


def unroll(batch: Any, chosen: np.ndarray, begin: np.ndarray) -> tuple[Mapping[str, np.ndarray], list[tuple[str, str]]]:
    """What an actor's slot holds after a fresh unroll."""
    faults: list[tuple[str, str]] = []
    rows = Rows(batch, lambda kind, detail: faults.append((kind, detail)))
    slot = trajectory_record(batch.spec, len(chosen), B).empty()
    rows.begin(slot, True, begin)
    for t, action in enumerate(chosen):
        rows.step(slot, t, action)
    return slot, faults


def tuning(p: Problem, time_steps: int = T) -> TuningBatch:
    return TuningBatch(p, time_steps, B, seed=0, actor=0)


def test_both_forms_give_the_same_transitions_and_rewards() -> None:
    plain, _ = unroll(tuning(problem("python")), actions(), starts())
    arrays, _ = unroll(tuning(problem("numpy")), actions(), starts())
    traced, _ = unroll(JaxBatch(TuningEnv(problem("jax"), T), B, 0, 0), actions(), starts())
    for name in ("obs", "reward", "discount", "boundary", "valid", "first"):
        np.testing.assert_array_equal(plain[name], arrays[name], name)
        np.testing.assert_allclose(plain[name], traced[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_the_reward_is_what_f_fell_and_conditions_stay() -> None:
    p = problem("python")
    slot, faults = unroll(tuning(p), actions(), starts())
    obs, chosen = slot["obs"], actions()
    np.testing.assert_array_equal(obs[0], starts())
    for t in range(T):
        np.testing.assert_allclose(slot["reward"][t], p.evaluate(obs[t]) - p.evaluate(obs[t + 1]), atol=1e-3)
        np.testing.assert_array_equal(obs[t + 1][:, -1], obs[0][:, -1])
        np.testing.assert_allclose(obs[t + 1][:, 0], chosen[t, :, 0].clip(-1, 1))  # absolute, not a move
        np.testing.assert_array_equal(obs[t + 1][:, 1:4].argmax(1), chosen[t, :, 1])
        np.testing.assert_array_equal(p.denormalise(obs[t + 1])["n"], chosen[t, :, 2] + 2)
    assert not faults


@pytest.mark.parametrize("form", ["python", "jax"])
def test_an_episode_is_terminated_after_its_steps_and_fresh_unrolls_waste_no_row(form: str) -> None:
    batch = tuning(problem("python")) if form == "python" else JaxBatch(TuningEnv(problem("jax"), T), B, 0, 0)
    rows = Rows(batch, lambda kind, detail: pytest.fail(detail))
    slot = trajectory_record(batch.spec, T, B).empty()
    for again in range(3):
        rows.begin(slot, True, starts(again))
        for t in range(T):
            rows.step(slot, t, actions(again)[t])
        assert slot["valid"].all()
        assert slot["first"][0].all() and not slot["first"][1:].any()
        np.testing.assert_array_equal(slot["boundary"], [[False] * B, [True] * B])
        np.testing.assert_array_equal(slot["discount"], [[1.0] * B, [0.0] * B])
        np.testing.assert_array_equal(slot["obs"][0], starts(again))


def test_unrolls_that_go_on_begin_another_episode_by_themselves() -> None:
    batch = tuning(problem("python"))
    rows = Rows(batch, lambda kind, detail: pytest.fail(detail))
    slot = trajectory_record(batch.spec, 5, B).empty()
    rows.begin(slot)
    for t in range(5):
        rows.step(slot, t, actions(steps=5)[t])
    np.testing.assert_array_equal(slot["valid"][:, 0], [True, True, False, True, True])
    np.testing.assert_array_equal(slot["boundary"][:, 0], [False, True, False, False, True])
    assert slot["first"][3].all() and (slot["reward"][2] == 0).all()


def broken(x: float, mode: int, n: int, c: float) -> float:
    if x > 5.99:
        raise ValueError("the solver did not converge")
    return float("nan") if x < -1.99 else f(x, mode, n, c)


def test_what_fails_is_dropped_and_the_others_go_on() -> None:
    """Column 0 raises at its second step, column 1 gives NaN at its first, column 2 begins where f fails."""
    begin, chosen = starts(), np.zeros((T, B, 3), np.float32)
    begin[:, 0] = 0.0
    begin[2, 0] = 1.0
    chosen[1, 0, 0] = 1.0
    chosen[0, 1, 0] = -1.0
    slot, faults = unroll(tuning(problem("python", broken)), chosen, begin)
    np.testing.assert_array_equal(slot["valid"], [[True, False, False, True, True], [False, True, True, True, True]])
    np.testing.assert_array_equal(slot["boundary"][:, 0], [False, True])
    np.testing.assert_array_equal(slot["first"][:, 1], [True, True, False])
    assert np.isfinite(slot["reward"]).all() and np.isfinite(slot["obs"]).all()
    assert (slot["reward"][~slot["valid"]] == 0).all()
    [(kind, told)] = faults
    assert kind == "f_failed" and "f: 2 episodes dropped so far: it returned nan" in told


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_failures_cost_no_evaluation(share: float) -> None:
    """T + 1 calls for each episode of an unroll, however many fail."""
    calls: list[float] = []
    draw = np.random.default_rng(0)

    def unsure(x: float, mode: int, n: int, c: float) -> float:
        calls.append(x)
        return float("nan") if draw.random() < share else f(x, mode, n, c)

    slot, _ = unroll(tuning(problem("python", unsure)), actions(), starts())
    assert len(calls) == (T + 1) * B
    assert np.isfinite(slot["reward"]).all() and np.isfinite(slot["obs"]).all()


def test_faults_name_the_reason_and_grow_rarer() -> None:
    def bad(x: float, mode: int, n: int, c: float) -> float:
        raise ValueError("the solver did not converge")

    batch = tuning(problem("python", bad))
    told: list[str] = []
    rows = Rows(batch, lambda kind, detail: told.append(detail))
    slot = trajectory_record(batch.spec, T, B).empty()
    for again in range(40):
        rows.begin(slot, True, starts(again))
        for t in range(T):
            rows.step(slot, t, actions(again)[t])
        assert not slot["valid"].any() and np.isfinite(slot["obs"]).all()
    assert 3 <= len(told) <= 9
    assert all("ValueError: the solver did not converge" in line for line in told)


def test_a_traced_f_that_is_not_finite_drops_its_episode() -> None:
    def half(x: Any, mode: Any, n: Any, c: Any) -> Any:
        return jnp.where(x > 2.0, jnp.nan, f(x, mode, n, c))

    begin, chosen = starts(), np.zeros((T, B, 3), np.float32)
    begin[:, 0] = -0.5
    chosen[..., 0] = -0.5
    chosen[1, 0, 0] = 0.9
    slot, faults = unroll(JaxBatch(TuningEnv(problem("jax", half), T), B, 0, 0), chosen, begin)
    np.testing.assert_array_equal(slot["valid"][:, 0], [False, False])
    assert slot["valid"][:, 1:].all() and len(faults) == 1 and np.isfinite(slot["reward"]).all()


def test_a_snapshot_brings_the_generator_back() -> None:
    batch = tuning(problem("python"))
    batch.reset()
    kept = batch.snapshot()
    after = batch.reset().copy()
    other = TuningBatch(problem("python"), T, B, seed=9, actor=3)
    other.restore(kept)
    np.testing.assert_array_equal(other.reset(), after)


def test_actors_draw_different_points() -> None:
    first, second = (TuningBatch(problem("python"), T, B, 0, actor).reset() for actor in (0, 1))
    assert not np.array_equal(first, second)


def test_the_source_speaks_for_the_problem() -> None:
    source = ProblemSource(problem("jax"), T, "random", 2)
    assert source.spec() == env_spec(problem("jax")) and source.fresh
    assert isinstance(source.batch(B, 0, 0), JaxBatch)
    assert isinstance(ProblemSource(problem("python"), T, "random", 2).batch(B, 0, 0), TuningBatch)
    assert source.spec().obs.shape == (6,) and source.spec().action.width == 3
    assert hash(TuningEnv(problem("jax"), 2)) == hash(TuningEnv(problem("jax"), 2))
    assert TuningEnv(problem("jax"), 2) != TuningEnv(problem("jax"), 3)
