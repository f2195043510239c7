"""Samplers of the points where training episodes of learn-to-optimize begin: one file per sampler.

May import: core and the other files here. Each is a `core.starts.Starts`: pure, hashable and run by the actor, so that it can
query the policy. To add one: its file and one line in `SAMPLERS`. Looking for their callers? `acting.collector` and
`runtimes.fused`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.algorithm import Algorithm
from shoal.core.errors import BadInput, nearest
from shoal.core.starts import Starts
from shoal.optimize.samplers.cube import Cube
from shoal.optimize.samplers.grid import GridStarts
from shoal.optimize.samplers.heterogeneous import SplitStarts
from shoal.optimize.samplers.latin_hypercube import LatinHypercubeStarts
from shoal.optimize.samplers.latin_scipy import LatinScipyStarts
from shoal.optimize.samplers.random import RandomStarts
from shoal.optimize.samplers.uncertainty import UncertaintyStarts

# (cube, algorithm, driver, drivers) -> the driver's sampler
SAMPLERS: dict[str, Callable[[Cube, Any, int, int], Starts]] = {
    "random": lambda cube, algorithm, driver, drivers: RandomStarts(cube),
    "latin_hypercube": lambda cube, algorithm, driver, drivers: LatinHypercubeStarts(cube),
    "latin_scipy": lambda cube, algorithm, driver, drivers: LatinScipyStarts(cube),
    "uncertainty": lambda cube, algorithm, driver, drivers: UncertaintyStarts(cube, algorithm),
    "grid": lambda cube, algorithm, driver, drivers: GridStarts(cube, driver, drivers),
}
HETEROGENEOUS = ("random", "latin_hypercube", "uncertainty")  # taken by the drivers in turn


def drivers_starts(name: str, cube: Cube, algorithm: Algorithm, drivers: int, actors: int) -> tuple[Starts, ...]:
    """The starts of each actor. Drivers are actors, or shares of the episodes if one actor plays all drivers."""
    names = HETEROGENEOUS if name == "heterogeneous" else (name,)
    for known in names:
        if known not in SAMPLERS:
            valid = [*SAMPLERS, "heterogeneous"]
            raise BadInput(f"unknown sampler {known!r}.{nearest(known, valid)} There are: {', '.join(valid)}.")
    each = tuple(SAMPLERS[names[i % len(names)]](cube, algorithm, i, drivers) for i in range(drivers))
    return each if actors == drivers else (SplitStarts(each),)
