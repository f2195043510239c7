"""Distributions over every action space, as functions of one flat parameter vector `[..., P]`.

The vector holds the parts of `ActionSpec` in order:

| part | parameters | distribution |
| --- | --- | --- |
| Categorical(sizes) | logits, sizes[0] of them, then sizes[1], ... | independent categoricals |
| Binary(n) | n logits of a 1 | independent Bernoullis |
| Continuous, n entries | n means, then n log standard deviations | independent normals |

Parts are independent, so log-probabilities, entropies and divergences add up. A continuous action is the raw sample in
normalised coordinates, unclipped: it is clipped only when the environment is stepped, and the log-probability stays that of
a normal.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import log, pi

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.spec import ActionPart, ActionSpec, Binary, Categorical
from shoal.core.trajectory import Array

LOG_STD_RANGE = (-5.0, 2.0)
_ABSENT = -1e30  # the logit of a choice that does not exist; finite, so that gradients are finite


def part_size(part: ActionPart) -> int:
    """The number of parameters of a part."""
    if isinstance(part, Categorical):
        return sum(part.sizes)
    return part.size if isinstance(part, Binary) else 2 * part.width


def parameter_size(spec: ActionSpec) -> int:
    """P, the length of the parameter vector."""
    return sum(part_size(part) for part in spec.parts)


def sample(spec: ActionSpec, params: Array, key: Array, explore: Array) -> Array:
    """An action whose noise is scaled by `explore`: 1 samples, 0 is the mode.

    Args:
        spec: the action space.
        params: [..., P].
        key: of jax.random.
        explore: [...] or a number.

    Returns:
        [..., *spec.shape] of spec.dtype.
    """
    assert params.shape[-1] == parameter_size(spec), (params.shape, parameter_size(spec))
    explore = jnp.asarray(explore)[..., None]
    if spec.scalar:
        return jnp.argmax(params + explore * jax.random.gumbel(key, params.shape, params.dtype), -1).astype(jnp.int32)
    keys = jax.random.split(key, len(spec.parts)) if len(spec.parts) > 1 else [key]
    chosen = [_draw(part, p, k, explore) for (part, p), k in zip(_parts(spec, params), keys, strict=True)]
    return jnp.concatenate([c.astype(spec.dtype) for c in chosen], -1)


def mode(spec: ActionSpec, params: Array) -> Array:
    """The most likely action.

    Args:
        spec: the action space.
        params: [..., P].

    Returns:
        [..., *spec.shape] of spec.dtype.
    """
    assert params.shape[-1] == parameter_size(spec), (params.shape, parameter_size(spec))
    if spec.scalar:
        return jnp.argmax(params, -1).astype(jnp.int32)
    return jnp.concatenate([_mode(part, p).astype(spec.dtype) for part, p in _parts(spec, params)], -1)


def log_prob(spec: ActionSpec, params: Array, action: Array) -> Array:
    """The logarithm of an action's probability (density for continuous parts).

    Args:
        spec: the action space.
        params: [..., P].
        action: [..., *spec.shape].

    Returns:
        [...].
    """
    assert params.shape[-1] == parameter_size(spec), (params.shape, parameter_size(spec))
    assert action.shape == (*params.shape[:-1], *spec.shape), (action.shape, params.shape, spec.shape)
    action = jnp.asarray(action)
    if spec.scalar:
        return _picked(jax.nn.log_softmax(params), action)
    ends = list(accumulate(part.width for part in spec.parts))
    columns = [action[..., end - part.width : end] for part, end in zip(spec.parts, ends, strict=True)]
    return sum(_log_prob(part, p, a) for (part, p), a in zip(_parts(spec, params), columns, strict=True))


def entropy(spec: ActionSpec, params: Array) -> Array:
    """`-E[log p]` (differential entropy for continuous parts).

    Args:
        spec: the action space.
        params: [..., P].

    Returns:
        [...].
    """
    assert params.shape[-1] == parameter_size(spec), (params.shape, parameter_size(spec))
    return sum(_entropy(part, p) for part, p in _parts(spec, params))


def kl(spec: ActionSpec, p: Array, q: Array) -> Array:
    """`KL(p || q)`, from parameters.

    Args:
        spec: the action space.
        p: [..., P].
        q: [..., P].

    Returns:
        [...].
    """
    assert p.shape == q.shape and p.shape[-1] == parameter_size(spec), (p.shape, q.shape, parameter_size(spec))
    return sum(_kl(part, a, b) for (part, a), (_, b) in zip(_parts(spec, p), _parts(spec, q), strict=True))


def _parts(spec: ActionSpec, params: Array) -> Iterator[tuple[ActionPart, Array]]:
    """Each part with its columns of the vector."""
    at = 0
    for part in spec.parts:
        yield part, params[..., at : at + part_size(part)]
        at += part_size(part)


def _rows(part: Categorical, logits: Array) -> Array:
    """[..., entries, choices]: one row of logits per entry; shorter rows are padded with `_ABSENT`."""
    widest = max(part.sizes)
    if min(part.sizes) == widest:
        return logits.reshape(*logits.shape[:-1], part.width, widest)
    starts = np.cumsum((0, *part.sizes[:-1]))
    columns = np.arange(widest)
    exists = columns < np.asarray(part.sizes)[:, None]
    return jnp.where(exists, logits[..., np.where(exists, starts[:, None] + columns, 0)], _ABSENT)


def _normal(params: Array) -> tuple[Array, Array]:
    """(mean, log standard deviation clipped to its range)."""
    mean, log_std = jnp.split(params, 2, -1)
    return mean, jnp.clip(log_std, *LOG_STD_RANGE)


def _picked(log_p: Array, index: Array) -> Array:
    """`log_p[..., index]`, as a sum over a comparison: its gradient needs no scatter."""
    choices = jnp.arange(log_p.shape[-1])
    return jnp.sum(jnp.where(index[..., None].astype(jnp.int32) == choices, log_p, 0.0), -1)


def _draw(part: ActionPart, params: Array, key: Array, explore: Array) -> Array:
    if isinstance(part, Categorical):
        rows = _rows(part, params)
        return jnp.argmax(rows + explore[..., None] * jax.random.gumbel(key, rows.shape, rows.dtype), -1)
    if isinstance(part, Binary):
        return params + explore * jax.random.logistic(key, params.shape, params.dtype) > 0
    mean, log_std = _normal(params)
    return mean + explore * jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)


def _mode(part: ActionPart, params: Array) -> Array:
    if isinstance(part, Categorical):
        return jnp.argmax(_rows(part, params), -1)
    return params > 0 if isinstance(part, Binary) else _normal(params)[0]


def _log_prob(part: ActionPart, params: Array, action: Array) -> Array:
    if isinstance(part, Categorical):
        return jnp.sum(_picked(jax.nn.log_softmax(_rows(part, params)), action), -1)
    if isinstance(part, Binary):
        return jnp.sum(action * params - jax.nn.softplus(params), -1)
    mean, log_std = _normal(params)
    z = (action - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * jnp.square(z) - log_std - 0.5 * log(2.0 * pi), -1)


def _entropy(part: ActionPart, params: Array) -> Array:
    if isinstance(part, Categorical):
        log_p = jax.nn.log_softmax(_rows(part, params))
        return -jnp.sum(jnp.exp(log_p) * log_p, (-2, -1))
    if isinstance(part, Binary):
        return jnp.sum(jax.nn.softplus(params) - params * jax.nn.sigmoid(params), -1)
    return jnp.sum(_normal(params)[1] + 0.5 * log(2.0 * pi) + 0.5, -1)


def _kl(part: ActionPart, p: Array, q: Array) -> Array:
    if isinstance(part, Categorical):
        log_p, log_q = jax.nn.log_softmax(_rows(part, p)), jax.nn.log_softmax(_rows(part, q))
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), (-2, -1))
    if isinstance(part, Binary):
        return jnp.sum(jax.nn.sigmoid(p) * (p - q) - jax.nn.softplus(p) + jax.nn.softplus(q), -1)
    (mean_p, log_p), (mean_q, log_q) = _normal(p), _normal(q)
    square = jnp.exp(2.0 * (log_p - log_q)) + jnp.square((mean_p - mean_q) * jnp.exp(-log_q))
    return jnp.sum(log_q - log_p + 0.5 * square - 0.5, -1)
