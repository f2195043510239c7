"""A synthetic stand-in for the regulation of a booster's gradient magnets, in ticks of 1/15 s. Not measured data.

The error e of the magnet current (IMINER) follows the setting v (VIMIN), a slow deviation f of the line frequency (LINFRQ),
the ramp I of the main injector (IB now, MDAT40 one tick ahead) and a thermal drift d, which no channel shows:

    e' = .5 e + 5 v + .15 f + .9 (I(k+1) - I(k)) + .12 f I(k) + d + .05 n
    f' = .97 f + sqrt(1 - .97^2) n          d' = .9995 d + .004 n          n standard normal
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.trajectory import Array

CHANNELS = ("VIMIN", "IMINER", "LINFRQ", "IB", "MDAT40")
VIMIN, IMINER = 0, 1  # columns
PERIOD = 32  # ticks of a ramp
KNOTS = (0.0, 6.0, 14.0, 20.0, 28.0, 32.0)
CURRENTS = (-1.0, -1.0, 1.0, 1.0, -1.0, -1.0)
ALPHA, GAMMA = 0.1, 7.535e-5  # of the PI regulator under which the series is recorded
DITHER = 0.03  # standard deviation of what the recording adds to the setting, so that its effect can be fitted
DITHER_MEMORY = 0.8
DRIFT_MEMORY, DRIFT_STEP = 0.9995, 0.004
ROWS = 60_000


class Plant(NamedTuple):
    """The plant's state at one tick."""

    error: Array  # e
    frequency: Array  # f
    drift: Array  # d
    tick: Array  # int32


def ramp(tick: Array) -> Array:
    """The main injector's current: a trapezoid from -1 to 1."""
    return jnp.interp((tick % PERIOD).astype(jnp.float32), jnp.array(KNOTS), jnp.array(CURRENTS))


def start(key: Array) -> Plant:
    """A state with no error, at the beginning of a ramp; frequency and drift as they are after a long time."""
    frequency, drift = jax.random.normal(key, (2,))
    spread = DRIFT_STEP / math.sqrt(1 - DRIFT_MEMORY**2)
    return Plant(jnp.float32(0), frequency, spread * drift, jnp.int32(0))


def advance(state: Plant, setting: Array, noise: Array) -> Plant:
    """The state one tick later, with VIMIN at `setting`; `noise` [3] is standard normal."""
    e, f, d, k = state
    now, ahead = ramp(k), ramp(k + 1)
    error = 0.5 * e + 5 * setting + 0.15 * f + 0.9 * (ahead - now) + 0.12 * f * now + d + 0.05 * noise[0]
    frequency = 0.97 * f + math.sqrt(1 - 0.97**2) * noise[1]
    return Plant(error, frequency, DRIFT_MEMORY * d + DRIFT_STEP * noise[2], k + 1)


def measure(state: Plant, setting: Array, noise: Array) -> Array:
    """The five channels [5], in the order of CHANNELS; `noise` [3] is standard normal."""
    return jnp.stack(
        [
            setting,
            state.error,
            state.frequency + 0.05 * noise[0],
            ramp(state.tick) + 0.02 * noise[1],
            ramp(state.tick + 1) + 0.02 * noise[2],
        ]
    )


def record(seed: int | Array, rows: int = ROWS) -> tuple[Array, Plant]:
    """A series under the PI regulator with dither: (channels [rows, 5], states [rows]). Row k holds the setting of tick k."""

    def tick(carry: tuple[Plant, Array, Array], noise: Array) -> tuple[tuple[Plant, Array, Array], tuple[Array, Plant]]:
        state, integral, dither = carry
        dither = DITHER_MEMORY * dither + math.sqrt(1 - DITHER_MEMORY**2) * DITHER * noise[6]
        setting = -ALPHA * state.error - integral + dither
        row = measure(state, setting, noise[:3])
        after = (advance(state, setting, noise[3:6]), integral + GAMMA * state.error, dither)
        return after, (row, state)

    first, rest = jax.random.split(jax.random.key(seed))
    begin = (start(first), jnp.float32(0), jnp.float32(0))
    _, recorded = jax.lax.scan(tick, begin, jax.random.normal(rest, (rows, 7)))
    return recorded
