"""A2C: one gradient per batch, from advantages of the behaviour policy.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783. Deviation: the return estimator is GAE, which includes n-step returns as a
special case; if the acting weights may be stale it is V-trace (Espeholt et al. 2018,
https://arxiv.org/abs/1802.01561).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import jax.numpy as jnp

from shoal.algos.on_policy import Batch, OnPolicy, OnPolicyConfig, adam, momentum, never, ratios, rmsprop
from shoal.core.algorithm import LearnerState, Optimiser, Params
from shoal.core.config import Fraction, Positive, PositiveFloat
from shoal.core.spec import Continuous
from shoal.core.trajectory import Array
from shoal.ops import losses


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic."""

    learning_rate: PositiveFloat = 1e-3
    """learning rate at the start"""
    unroll: Positive = 16
    """steps of each environment between two updates"""
    normalise_advantage: bool = False
    """standardise advantages over the batch"""
    optimiser: Literal["rmsprop", "adam", "momentum"] = "rmsprop"
    """optimiser"""
    decay: Fraction = 0.99
    """RMSProp's decay of the mean squared gradient"""
    momentum: Fraction = 0.9
    """momentum: share of the last step that is added to the next"""
    epsilon: PositiveFloat = 1e-5
    """added to the denominator of RMSProp and Adam"""
    initial_square: PositiveFloat = 1e-2
    """initial value of RMSProp's mean squared gradient: a larger one keeps the first steps small"""
    log_epsilon: Fraction = 0.0
    """lower bound of the probabilities of discrete actions in the policy loss (GA3C: 1e-6); 0 is off"""


@final
class A2C(OnPolicy[A2CConfig]):
    Config = A2CConfig
    about = "advantage actor-critic: one gradient per batch"

    @property
    def epochs(self) -> int:
        return 1

    @property
    def optimiser(self) -> Optimiser:
        config = self.config
        if config.optimiser == "adam":
            return adam(config.epsilon)
        if config.optimiser == "momentum":
            return momentum(config.momentum)
        return rmsprop(config.decay, config.epsilon, config.initial_square)

    def loss(self, params: Params, state: LearnerState, batch: Batch) -> tuple[Array, dict[str, Array]]:
        return actor_critic_loss(self, params, state, batch, self._floor)

    @property
    def _floor(self) -> float | None:
        """Lower bound of log-probabilities; None if it is off, or for continuous actions, whose densities have no natural scale."""
        discrete = not any(isinstance(part, Continuous) for part in self.task.spec.action.parts)
        return math.log(self.config.log_epsilon) if self.config.log_epsilon and discrete else None

    def should_stop(self, metrics: dict[str, Array]) -> Array:
        return never(metrics)


def actor_critic_loss(
    algorithm: OnPolicy[Any], params: Params, state: LearnerState, batch: Batch, floor: float | None = None
) -> tuple[Array, dict[str, Array]]:
    """-log pi A + c (v - G)^2 - beta H, averaged over valid rows; `floor` bounds log pi in the first term from below."""
    rows, config = batch.rows, algorithm.config
    log_pi, entropy, value = algorithm.evaluate(params, batch)
    held = log_pi if floor is None else jnp.maximum(log_pi, floor)
    policy_loss = losses.masked_mean(losses.policy_gradient(held, rows.advantage), rows.valid)
    value_loss = losses.masked_mean(losses.value_loss(value, rows.target), rows.valid)
    mean_entropy = losses.masked_mean(entropy, rows.valid)
    total = policy_loss + config.value_weight * value_loss - algorithm.entropy_weight(state) * mean_entropy
    metrics = {"policy": policy_loss, "value": value_loss, "entropy": mean_entropy}
    return total, {**metrics, **(ratios(log_pi, batch, config.rho_clip) if algorithm.traces else {})}
