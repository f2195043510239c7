"""DDPG: a deterministic policy that maximises its critic, from a replay.

Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971. Deviations: the policy's learning rate is a multiple of the critic's; no
batch normalisation (layer norm is an option) and no weight decay; the policy's gradient uses the critic before its step on the
same minibatch; gradients with a large norm are clipped; n-step rows, prioritized replay and normalisation are options;
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
    """noise on actions: gaussian is independent at every step; ou (Ornstein-Uhlenbeck) is correlated and restarts with episodes"""
    noise_scale: NonNegativeFloat = 0.2
    """standard deviation of the noise (ou: of each step's increment), for actions from -1 to 1"""


@final
@dataclass(frozen=True)
class DDPG(Deterministic[DDPGConfig]):
    Config: ClassVar[type[Any]] = DDPGConfig
    critics: ClassVar[int] = 1
    about: ClassVar[str] = "deep deterministic policy gradients: a policy that maximises its critic (Box actions)"

    def target(self, state: LearnerState, rows: Rows, key: Array) -> Array:
        """`r + discount q'(s', mu'(s'))`."""
        old = state.extra["target"]
        seen, action = self.bootstrap(old, rows)
        return continuous_control.q_target(rows.reward, rows.discount, self.net.q(old["critic"], seen, action))

    @property
    def delay(self) -> int:
        return 1
