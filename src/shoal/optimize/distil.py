"""A small policy from many pairs of conditions and best knobs, by L-BFGS: the raw law, which is exported to devices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import minimize

from shoal.optimize.axes import Real
from shoal.optimize.law import Weights
from shoal.optimize.problem import Problem
from shoal.optimize.threads import one_thread

HIDDEN = (32, 32)
ITERATIONS = 400
DECAY = 1e-7  # of the weights' squares: with few conditions, wild nets fit too
META: dict[str, Any] = {"activation": "tanh", "time_steps": 1, "own_scale": True, "bounded": True}


@one_thread()
def distil(problem: Problem, points: np.ndarray, seed: int = 0) -> Weights:
    """The net that maps the conditions of points [N, width] to their knobs, as a law applies it, once from mid-box.

    Real knobs have a squared error, the others a cross-entropy. The same points and seed give the same bits.
    """
    rng = np.random.default_rng(seed)
    starts = problem.join(problem.mid(), points[:, problem.knob_width :])
    heads, targets = _targets(problem, points)
    sizes = (problem.width, *HIDDEN, heads[-1][1])
    shapes = [((a, b), (b,)) for a, b in pairwise(sizes)]
    first = [np.concatenate([rng.normal(0.0, a**-0.5, a * b), np.zeros(b)]) for (a, b), _ in shapes]
    first[-1] *= 0.1

    def unpack(flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        found, at = [], 0
        for (a, b), _ in shapes:
            found.append((flat[at : at + a * b].reshape(a, b), flat[at + a * b : at + a * b + b]))
            at += a * b + b
        return found

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        layers, inputs = unpack(flat), [starts]
        for w, b in layers[:-1]:
            inputs.append(np.tanh(inputs[-1] @ w + b))
        out = inputs[-1] @ layers[-1][0] + layers[-1][1]
        value, slope = _error(out, heads, targets)
        gradients: list[np.ndarray] = []
        for i in reversed(range(len(layers))):
            gradients += [slope.sum(0), (inputs[i].T @ slope).ravel()]
            slope = (slope @ layers[i][0].T) * (1.0 - inputs[i] ** 2)
        return value + DECAY * float(flat @ flat), np.concatenate(gradients[::-1]) + 2.0 * DECAY * flat

    done = minimize(loss, np.concatenate(first), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    layers = [(w.astype(np.float32), b.astype(np.float32)) for w, b in unpack(done.x)]
    return Weights(tuple(layers[:-1]), layers[-1], "tanh", None, None)


def _targets(problem: Problem, points: np.ndarray) -> tuple[list[tuple[int, int]], list[np.ndarray]]:
    """For each knob, its columns (first, end) in the head's output and its target: [N] numbers, or [N] positions."""
    heads: list[tuple[int, int]] = []
    targets, at, out = [], 0, 0
    for axis in problem.knobs:
        columns = points[:, at : at + axis.width]
        size = 1 if isinstance(axis, Real) else axis.size
        targets.append(columns[:, 0] if isinstance(axis, Real) else np.asarray(axis.index(columns)))
        heads.append((out, out + size))
        at, out = at + axis.width, out + size
    return heads, targets


def _error(out: np.ndarray, heads: list[tuple[int, int]], targets: list[np.ndarray]) -> tuple[float, np.ndarray]:
    """The mean error of the head's output [N, P], and its slope [N, P]."""
    value, slope, n = 0.0, np.zeros_like(out), len(out)
    for (first, end), target in zip(heads, targets, strict=True):
        part = out[:, first:end]
        if target.dtype.kind == "f":
            bounded = np.tanh(part[:, 0])
            off = bounded - target
            value += float(off @ off) / n
            slope[:, first] = 2.0 * off * (1.0 - bounded**2) / n
        else:
            share = np.exp(part - part.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            every = np.arange(n)
            value -= float(np.log(np.maximum(share[every, target], 1e-300)).mean())
            share[every, target] -= 1.0
            slope[:, first:end] = share / n
    return value, slope
