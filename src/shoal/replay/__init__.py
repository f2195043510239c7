"""Replay: rows in rings, uniform and prioritized sampling, on arrays that the caller provides.

This package holds plain NumPy structures without threads, ports or JAX. May import: NumPy, cpprb, `core`. You may change:
anything that keeps draws a function of (rows, seed), on which resume and bit equality rest. To add one: a sampler is a class
with the methods of `samplers.Sampler` and one line in `make_sampler`. Looking for the code that inserts and draws?
`learning.replay_update`. For memory that processes share? `runtimes.pools`. For n-step returns? `ops.q_learning`.
"""

from shoal.replay.rings import Rings
from shoal.replay.samplers import Picked, Sampler, make_sampler

__all__ = ["Picked", "Rings", "Sampler", "make_sampler"]
