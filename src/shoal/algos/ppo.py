"""PPO: several epochs on a batch, with the policy kept near the behaviour policy.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347. Deviations: advantages are standardised over the whole batch, not each
minibatch; values are recomputed with the newest weights when the batch arrives, so that targets are not stale; the KL stop
skips the remaining minibatches of an update, not only the remaining epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import jax.numpy as jnp

from shoal.algos.on_policy import Batch, OnPolicy, OnPolicyConfig, adam, never, ratios
from shoal.core.algorithm import LearnerState, Optimiser, Params
from shoal.core.config import NonNegative, NonNegativeFloat, Positive, PositiveFloat
from shoal.core.trajectory import Array
from shoal.ops import losses, schedules


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation."""

    batch_size: NonNegative = 256
    """samples per gradient: the batch is cut into minibatches of this size or the nearest that divides it; 0 is the whole batch"""
    epochs: Positive = 4
    """passes over each batch"""
    clip: PositiveFloat = 0.2
    """clip range of the probability ratio"""
    anneal_clip: bool = False
    """anneal the clip range with the learning rate"""
    value_clip: NonNegativeFloat = 0.0
    """clip range of the change of a value in one update; 0 is off"""
    target_kl: NonNegativeFloat = 0.0
    """stop an update once its approximate KL divergence exceeds 1.5 times this; 0 is off"""


@final
class PPO(OnPolicy[PPOConfig]):
    Config = PPOConfig
    weighs = True
    about = "proximal policy optimisation: several epochs on each batch, kept near the policy that acted"

    @property
    def epochs(self) -> int:
        return self.config.epochs

    @property
    def optimiser(self) -> Optimiser:
        return adam(1e-5)

    def loss(self, params: Params, state: LearnerState, batch: Batch) -> tuple[Array, dict[str, Array]]:
        rows, config = batch.rows, self.config
        log_pi, entropy, value = self.evaluate(params, batch)
        clip = config.clip * (schedules.linear(1.0, config.final_rate, state.progress) if config.anneal_clip else 1.0)
        policy_loss = losses.masked_mean(losses.ppo_clip(log_pi, rows.log_mu, rows.advantage, clip), rows.valid)
        if config.value_clip:
            squared = losses.clipped_value_loss(value, rows.value, rows.target, config.value_clip)
        else:
            squared = losses.value_loss(value, rows.target)
        value_loss = losses.masked_mean(squared, rows.valid)
        mean_entropy = losses.masked_mean(entropy, rows.valid)
        total = policy_loss + config.value_weight * value_loss - self.entropy_weight(state) * mean_entropy
        ratio = jnp.exp(log_pi - rows.log_mu)
        metrics = {
            "policy": policy_loss,
            "value": value_loss,
            "entropy": mean_entropy,
            "kl": losses.masked_mean(losses.approx_kl(log_pi, rows.log_mu), rows.valid),
            "clipped": losses.masked_mean((jnp.abs(ratio - 1.0) > clip).astype(jnp.float32), rows.valid),
        }
        return total, {**metrics, **(ratios(log_pi, batch, config.rho_clip) if self.traces else {})}

    def should_stop(self, metrics: dict[str, Array]) -> Array:
        if not self.config.target_kl:
            return never(metrics)
        return metrics["kl"] > 1.5 * self.config.target_kl
