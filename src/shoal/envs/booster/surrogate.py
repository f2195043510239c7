"""The network that predicts the next IMINER from the last columns of a series: 3 columns -> 64 -> 64 tanh -> 1.

The weights for the synthetic series are stored in `surrogate.npz`; `python -m shoal.envs.booster.surrogate` makes that file. A
user's series is fitted on first use, in a few seconds.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from shoal.core.trajectory import Array
from shoal.envs.booster.plant import IMINER
from shoal.envs.booster.series import Series, load

COLUMNS = 3
HIDDEN = 64
UPDATES = 3000
BATCH = 1024
LEARNING_RATE = 4e-3
STORED = Path(__file__).with_name("surrogate.npz")

log = logging.getLogger("shoal")

Weights = tuple[tuple[Array, Array], ...]  # (matrix, bias) of each layer


class Surrogate(NamedTuple):
    """Fitted weights, what they leave unexplained, and how well they predict the part of the series that was held out."""

    weights: Weights
    residuals: (
        np.ndarray
    )  # [N] in standard units: recorded IMINER of each row less its prediction; 0 in the first 3 rows
    r2: float


def predict(weights: Weights, columns: Array) -> Array:
    """The next IMINER [...] in standard units, from the last columns [..., COLUMNS * 5], oldest first, in standard units."""
    *hidden, (matrix, bias) = weights
    for w, b in hidden:
        columns = jnp.tanh(columns @ w + b)
    return (columns @ matrix + bias)[..., 0]


def examples(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """(columns [N - 3, 15], next IMINER [N - 3]) in standard units."""
    rows = (series.rows - series.mean) / series.scale
    after = len(rows) - COLUMNS
    columns = np.concatenate([rows[i : i + after] for i in range(COLUMNS)], axis=1)
    return columns, rows[COLUMNS:, IMINER]


def assess(weights: Weights, series: Series) -> Surrogate:
    """The surrogate with its residuals. R2 is the share of the variance of the held-out IMINER that it explains."""
    columns, after = examples(series)
    left = after - np.asarray(predict(weights, columns))
    held = slice(series.split - COLUMNS, None)
    share = 1 - np.mean(np.square(left[held])) / np.var(after[held])
    return Surrogate(weights, np.concatenate([np.zeros(COLUMNS, np.float32), left]), float(share))


def fit(series: Series, seed: int = 0, updates: int = UPDATES) -> Weights:
    """Weights after `updates` of Adam on random batches of the series' first part. One compiled scan, the same for one seed."""
    columns, after = (jnp.asarray(part[: series.split - COLUMNS]) for part in examples(series))
    optimiser = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, updates))

    def loss(weights: Weights, chosen: Array) -> Array:
        return jnp.mean(jnp.square(predict(weights, columns[chosen]) - after[chosen]))

    def update(carry: tuple[Weights, optax.OptState], key: Array) -> tuple[tuple[Weights, optax.OptState], None]:
        weights, moments = carry
        chosen = jax.random.randint(key, (BATCH,), 0, len(after))
        change, moments = optimiser.update(jax.grad(loss)(weights, chosen), moments)
        return (optax.apply_updates(weights, change), moments), None

    def run(key: Array) -> Weights:
        first, rest = jax.random.split(key)
        weights = _initial(first, columns.shape[1])
        (weights, _), _ = jax.lax.scan(update, (weights, optimiser.init(weights)), jax.random.split(rest, updates))
        return weights

    return jax.tree.map(np.asarray, jax.jit(run)(jax.random.key(seed)))  # type: ignore[no-any-return]


def _initial(key: Array, inputs: int) -> Weights:
    sizes = (inputs, HIDDEN, HIDDEN, 1)
    keys = jax.random.split(key, len(sizes) - 1)
    return tuple(
        (jax.random.normal(k, (m, n)) / jnp.sqrt(m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    )


@cache
def surrogate(data: str | None = None) -> Surrogate:
    """The surrogate of the synthetic series, or of a user's CSV, fitted on first use."""
    series = load(data)
    with jax.ensure_compile_time_eval():  # the first use may be while an environment is traced
        if data is None:
            return assess(_stored(), series)
        fitted = assess(fit(series), series)
    log.warning("%s: surrogate fitted, R2 %.3f one tick ahead on the last fifth of the series", data, fitted.r2)
    return fitted


def _stored() -> Weights:
    with np.load(STORED, allow_pickle=False) as arrays:
        return tuple((arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(len(arrays.files) // 2))


def store(path: Path = STORED) -> float:
    """Fit the synthetic series and write the weights. Returns their R2."""
    series = load()
    weights = fit(series)
    np.savez(
        path, **{f"{kind}{i}": part for i, pair in enumerate(weights) for kind, part in zip("wb", pair, strict=True)}
    )
    return assess(weights, series).r2


if __name__ == "__main__":
    print(f"R2 {store():.4f} on the held-out part of the synthetic series; weights in {STORED}")
