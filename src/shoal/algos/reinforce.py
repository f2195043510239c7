"""REINFORCE with a learned baseline: Monte-Carlo returns, one gradient per batch.

Williams 1992, https://doi.org/10.1007/BF00992696. Deviation: the return of an episode that the unroll cuts off is completed with
the baseline's estimate (lambda is 1), because dropping it would favour short episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from shoal.algos.a2c import actor_critic_loss
from shoal.algos.on_policy import Batch, OnPolicy, OnPolicyConfig, adam, never
from shoal.core.algorithm import LearnerState, Optimiser, Params
from shoal.core.config import Fraction, Positive, PositiveFloat
from shoal.core.trajectory import Array


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(OnPolicyConfig):
    """REINFORCE with baseline."""

    learning_rate: PositiveFloat = 1e-3
    """learning rate at the start"""
    lam: Fraction = 1.0
    """GAE's lambda: 1 is the Monte-Carlo return; lower values trust the baseline more"""
    unroll: Positive = 128
    """steps of each environment between two updates"""


@final
class Reinforce(OnPolicy[ReinforceConfig]):
    Config = ReinforceConfig
    about = "REINFORCE with a learned baseline: Monte-Carlo returns, one gradient per batch"

    @property
    def epochs(self) -> int:
        return 1

    @property
    def optimiser(self) -> Optimiser:
        return adam(1e-8)

    def loss(self, params: Params, state: LearnerState, batch: Batch) -> tuple[Array, dict[str, Array]]:
        return actor_critic_loss(self, params, state, batch)

    def should_stop(self, metrics: dict[str, Array]) -> Array:
        return never(metrics)
