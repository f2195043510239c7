"""Detection of bad updates: those with a loss, a gradient, a statistic or weights that are not finite.

An update is all or nothing. The compiled functions say whether it was sound. If not, the role continues with the state before
it and reports a fault of kind `bad_update`, which names the likely cause. Gradients need no check of their own: one that is
not finite shows in the gradient norm, and in the weights from then on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.program import Context, Fault
from shoal.core.trajectory import Array, Trajectory

BAD_UPDATE = "bad_update"  # the kind of fault
SOUND = "sound"  # the verdict's place among the metrics of a compiled update
LIMIT = 1e18  # of the norm of the weights: beyond it, products of two of them leave the range of float32

HUGE = 1e6  # an observation or a reward beyond this is taken to be the cause
GROWN = 1e4  # a norm of the weights that no healthy net reaches
FAST = 1.0  # a learning rate that moves every weight by more than its size


def sound(params: Any, metrics: Mapping[str, Array]) -> Array:
    """[] bool: all losses are finite, and the weights are well within range."""
    squares = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))
    return (squares < LIMIT**2) & finite_losses(metrics)


def finite_losses(metrics: Mapping[str, Array]) -> Array:
    """[] bool: every metric without a prefix is finite; those are the losses and the gradient norm."""
    losses = [jnp.asarray(value, jnp.float32) for name, value in metrics.items() if _is_loss(name)]
    return jnp.isfinite(jnp.stack(losses)).all() if losses else jnp.asarray(True)


def unspoilt(before: LearnerState, after: LearnerState) -> Array:
    """[] bool: no finite statistic has become infinite or NaN. Compares the states before and after `prepare`."""
    pairs = zip(jax.tree.leaves(_statistics(before)), jax.tree.leaves(_statistics(after)), strict=True)
    changed = [(jnp.isfinite(new) | ~jnp.isfinite(old)).all() for old, new in pairs if new is not old]
    return jnp.stack(changed).all() if changed else jnp.asarray(True)


def _statistics(state: LearnerState) -> Any:
    return state.obs, None if state.reward is None else state.reward.moments, state.extra


def spoilt_if_unsound(vector: Array, metrics: Mapping[str, Array]) -> Array:
    """A gradient that is sent without its loss: all NaN if the loss is not finite, so that the receiver notices."""
    return jnp.where(finite_losses(metrics), vector, jnp.nan)


def kept(verdict: Array, after: Any, before: Any) -> Any:
    """`after` if sound, else `before`, inside a compiled function. A branch, because a select would be fused into both."""
    return jax.lax.cond(verdict, lambda new, old: new, lambda new, old: old, after, before)


def largest(trajectories: Iterable[Trajectory]) -> Array:
    """[2] the largest absolute observation and reward."""
    found = [jnp.stack([jnp.abs(jnp.asarray(x, jnp.float32)).max() for x in (t.obs, t.reward)]) for t in trajectories]
    return jnp.stack(found).max(axis=0)


def is_sound(vector: np.ndarray, metrics: Mapping[str, float]) -> bool:
    """`sound` outside compiled functions: for weights or a gradient as one vector, and metrics by their logged names."""
    with np.errstate(over="ignore", invalid="ignore"):
        within = float(np.dot(vector, vector)) < LIMIT**2
    return within and all(math.isfinite(value) for name, value in metrics.items() if name.startswith("loss/"))


def weight_norm(params: Any) -> float:
    """The norm of all weights; NaN or infinity if one is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(sum(float(np.square(np.asarray(leaf, np.float64)).sum()) for leaf in jax.tree.leaves(params)))


def _is_loss(name: str) -> bool:
    return "/" not in name


class Watch:
    """Watches one role's updates: counts consecutive bad ones, and reports each as a fault."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.in_a_row = 0

    def good(self) -> None:
        self.in_a_row = 0

    def bad(self, seen: Mapping[str, float]) -> None:
        """Report a dropped update; `seen` is the result of `seen_in`, or the part of it that is known."""
        self.in_a_row += 1
        detail = f"the update was dropped: {why(seen)}"
        self._context.fault(Fault(role=self._context.name, kind=BAD_UPDATE, detail=detail, in_a_row=self.in_a_row))


def seen_in(
    algorithm: Algorithm, state: LearnerState, metrics: Mapping[str, Any], trajectories: Iterable[Trajectory] = ()
) -> dict[str, float]:
    """Numbers that hint at the cause: `state` is the one before the update, `metrics` are its losses, by either kind of name."""
    losses = {name.removeprefix("loss/"): float(value) for name, value in metrics.items()}
    seen = {name: value for name, value in losses.items() if _is_loss(name) or name.startswith("seen/")}
    seen |= {"seen/rate": float(algorithm.rate(state)), "seen/weights": weight_norm(state.params)}
    if rows := list(trajectories):
        obs, reward = (float(number) for number in largest(rows))
        seen |= {"seen/obs": obs, "seen/reward": reward}
    return seen


def why(seen: Mapping[str, float]) -> str:
    """The likely cause in a few words, then the numbers."""
    obs, reward = seen.get("seen/obs", 0.0), seen.get("seen/reward", 0.0)
    rate, weights = seen["seen/rate"], seen["seen/weights"]
    if rate > FAST:
        cause = f"the learning rate {rate:g} is too large"
    elif not (obs <= HUGE and reward <= HUGE):
        what = f"observations up to {obs:g}" if not obs <= HUGE else f"rewards up to {reward:g}"
        cause = f"the environment returns {what}"
    elif not weights <= GROWN:
        cause = f"the weights have grown to a norm of {weights:g}: the learning rate {rate:g} is too large"
    else:
        cause = "the loss overflows"
    losses = [f"{name} {value:g}" for name, value in seen.items() if _is_loss(name) and not math.isfinite(value)]
    if math.isfinite(norm := seen.get("grad_norm", math.nan)):
        losses.append(f"gradient norm {norm:g}")
    numbers = {"weights of norm": "seen/weights", "observations up to": "seen/obs", "rewards up to": "seen/reward"}
    shown = [f"{words} {seen[name]:g}" for words, name in numbers.items() if name in seen]
    if "learning rate" not in cause:
        shown.append(f"learning rate {rate:g}")
    return f"{cause} ({', '.join([*losses, *shown])})"
