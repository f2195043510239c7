"""Seeds of environments: those of a resumed run and of a successor are other ones than before."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.spec import EnvSpec
from shoal.envs import source
from shoal.envs.batch import EnvBatch
from shoal.launch.compose import env_seed

SIZE = 3


def first(backend: str, start: int = 0, deaths: int = 0, seed: int = 7) -> np.ndarray:
    batch = source.find("CartPole-v1", backend).batch(SIZE, env_seed(seed, start, deaths), 0)
    try:
        return np.array(batch.reset())
    finally:
        batch.close()


@pytest.mark.parametrize("backend", ["gymnasium", "envpool", "jax"])
def test_no_episode_is_played_twice(backend: str) -> None:
    lives = [(0, 0), (40, 0), (41, 0), (0, 1), (0, 2), (40, 1)]
    found = [first(backend, *life) for life in lives]
    for i, one in enumerate(found):
        assert all((one != other).any() for other in found[:i]), lives[i]
        assert (one == first(backend, *lives[i])).all()
    assert (found[0] == np.array(source.find("CartPole-v1", backend).batch(SIZE, 7, 0).reset())).all()


@pytest.mark.parametrize("backend", ["gymnasium", "jax"])
@pytest.mark.parametrize("seed", [0, 5, 2**70])
def test_a_snapshot_goes_on_with_its_own_seeds(backend: str, seed: int) -> None:
    if backend == "jax" and seed > 2**64:
        pytest.skip("JAX has no such keys")
    found = source.find("CartPole-v1", backend)
    one, other = found.batch(SIZE, seed, 0), found.batch(SIZE, 9, 0)
    one.reset()
    other.reset()
    play(one, 5)
    other.restore(one.snapshot())
    assert (play(one, 200) == play(other, 200)).all(), "also in the episodes that begin later"


def play(batch: EnvBatch, steps: int) -> np.ndarray:
    assert isinstance(batch.spec, EnvSpec)
    seen = []
    for _ in range(steps):
        step = batch.step(np.zeros(SIZE, np.int32))
        seen.append(np.array(step.obs))
    return np.array(seen)
