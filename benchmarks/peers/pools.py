"""EnvPool's LunarLander for peers that can be given a vector of environments."""

from __future__ import annotations

from typing import Any

import envpool
from measure import ENV


def pool(size: int, seed: int) -> Any:
    """`size` environments behind one call, on one thread, as Shoal's actors have them."""
    seeds = [seed * 10_000 + i for i in range(size)]
    return envpool.make(ENV, env_type="gymnasium", num_envs=size, batch_size=size, num_threads=1, seed=seeds)
