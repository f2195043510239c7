"""Random keys by path: (seed, who, which) names one key, on every runtime and in every process."""

from __future__ import annotations

import numpy as np

# The first word of a path: no two uses share a key.
ACTING, LEARNING, INIT, ENVS, EVALUATION, STARTS, REPLAYING, GOSSIP, STRAYING, PLANNING = range(10)


def key_data(seed: int, *path: int) -> np.ndarray:
    """The raw data of a JAX key. Made on the host, so that no device call stands between two unrolls."""
    return np.random.SeedSequence(entropy=seed, spawn_key=path).generate_state(2)
