"""TD3: the minimum of two critics, a policy that is updated less often, and targets smoothed over actions.

Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477. Deviations: the policy's gradient uses the critics before
their step on the same minibatch; gradients with a large norm are clipped; n-step rows, prioritized replay, layer norm and
normalisation are options; actions are random until the first gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import jax

from shoal.algos.continuous import Rows
from shoal.algos.deterministic import Deterministic, DeterministicConfig
from shoal.core.algorithm import LearnerState
from shoal.core.config import NonNegativeFloat, Positive
from shoal.core.trajectory import Array
from shoal.ops import continuous_control


@dataclass(frozen=True, kw_only=True)
class TD3Config(DeterministicConfig):
    """Twin delayed deterministic policy gradients."""

    policy_delay: Positive = 2
    """gradients of the critics per gradient of the policy and per move of the targets"""
    smoothing: NonNegativeFloat = 0.2
    """standard deviation of the noise on the target policy's actions, drawn for each row"""
    smoothing_limit: NonNegativeFloat = 0.5
    """clip range of that noise"""


@final
@dataclass(frozen=True)
class TD3(Deterministic[TD3Config]):
    Config: ClassVar[type[Any]] = TD3Config
    critics: ClassVar[int] = 2
    about: ClassVar[str] = (
        "twin delayed DDPG: the minimum of two critics, a delayed policy, smoothed targets (Box actions)"
    )

    def target(self, state: LearnerState, rows: Rows, key: Array) -> Array:
        """`r + discount min_i q'_i(s', clip(mu'(s') + clipped noise))`."""
        old = state.extra["target"]
        seen, action = self.bootstrap(old, rows)
        noise = jax.random.normal(key, action.shape, action.dtype)
        action = continuous_control.smoothed_action(action, noise, self.config.smoothing, self.config.smoothing_limit)
        return continuous_control.q_target(rows.reward, rows.discount, self.net.q(old["critic"], seen, action))

    @property
    def delay(self) -> int:
        return self.config.policy_delay
