"""EnvPool's LunarLander for peers that can be given a vector of environments."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from measure import ENV

# Importing EnvPool registers every family, and one of them wants assets that are not installed here: Box2D's alone is enough.
sys.modules["envpool.entry"] = ModuleType("envpool.entry")
envpool = importlib.import_module("envpool")
importlib.import_module("envpool.box2d.registration")


def pool(size: int, seed: int) -> Any:
    """`size` environments behind one call, on one thread, as Shoal's actors have them."""
    seeds = [seed * 10_000 + i for i in range(size)]
    return envpool.make(ENV, env_type="gymnasium", num_envs=size, batch_size=size, num_threads=1, seed=seeds)
