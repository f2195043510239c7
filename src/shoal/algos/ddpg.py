"""DDPG: a deterministic policy that climbs its critic, from a replay.

Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971. Deviations: policy and critic have one learning rate with a factor; no
batch normalisation (layer norm is an option) and no weight decay; the policy's gradient is made of the critic before its step
of the same minibatch; gradients with a large norm are clipped; n-step rows, prioritized replay and normalisation are options;
actions are random until the first gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from shoal.algos.continuous import Rows
from shoal.algos.deterministic import Deterministic, DeterministicConfig
from shoal.core.algorithm import LearnerState
from shoal.core.config import NonNegativeFloat
from shoal.core.trajectory import Array
from shoal.ops import continuous_control


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(DeterministicConfig):
    """Deep deterministic policy gradients."""

    noise: Literal["gaussian", "ou"] = "ou"
    """noise on actions: independent from step to step, or Ornstein-Uhlenbeck's, which drifts and begins at 0 with each episode"""
    noise_scale: NonNegativeFloat = 0.2
    """its deviation (ou: of what comes in each step), where actions reach from -1 to 1"""


@final
@dataclass(frozen=True)
class DDPG(Deterministic[DDPGConfig]):
    Config: ClassVar[type[Any]] = DDPGConfig
    critics: ClassVar[int] = 1
    about: ClassVar[str] = "deep deterministic policy gradients: a policy that climbs its critic (Box actions)"

    def target(self, state: LearnerState, rows: Rows, key: Array) -> Array:
        """`r + discount q'(s', mu'(s'))`."""
        old = state.extra["target"]
        seen, action = self.bootstrap(old, rows)
        return continuous_control.q_target(rows.reward, rows.discount, self.net.q(old["critic"], seen, action))

    @property
    def delay(self) -> int:
        return 1
