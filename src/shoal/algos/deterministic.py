"""Acting of DDPG and TD3: one action per observation, plus exploration noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import jax.numpy as jnp

from shoal.algos.continuous import ContinuousConfig, ContinuousControl, Rows
from shoal.core.algorithm import ActorState, LearnerState, Params
from shoal.core.config import Fraction, NonNegativeFloat
from shoal.core.trajectory import Array
from shoal.nets.continuous import DeterministicNet, count_entries
from shoal.ops import continuous_control, schedules


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(ContinuousConfig):
    """Settings of deterministic policies."""

    noise: Literal["gaussian", "ou"] = "gaussian"
    """noise on actions: gaussian is independent at every step; ou (Ornstein-Uhlenbeck) is correlated and restarts with episodes"""
    noise_scale: NonNegativeFloat = 0.1
    """standard deviation of the noise (ou: of each step's increment), for actions from -1 to 1"""
    final_noise: Fraction = 1.0
    """share of the noise that remains at the end of the budget; 1 keeps it constant"""
    noise_theta: Fraction = 0.15
    """ou: share of the noise that decays at each step"""


C = TypeVar("C", bound=DeterministicConfig)


@dataclass(frozen=True)
class Deterministic(ContinuousControl[C, DeterministicNet]):
    net_name: ClassVar[str] = "deterministic"

    def init(self, key: Array) -> LearnerState:
        params = self.net.init(key, self.critics)
        return self.begun(params, self.optimiser.init(params), params)

    def explore(self, state: LearnerState) -> dict[str, Array]:
        start = self.config.noise_scale
        scale = schedules.linear(start, start * self.config.final_noise, state.progress)
        return {"noise": jnp.asarray(scale, jnp.float32)}

    def noise_carry(self, envs: int) -> dict[str, Array]:
        if self.config.noise == "gaussian":
            return {}
        return {"noise": jnp.zeros((envs, count_entries(self.task.spec)), jnp.float32)}

    def explored(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, noise: Array, explore: Array
    ) -> tuple[Array, dict[str, Array]]:
        action, scale = self.net.policy(actor.params["policy"], obs), actor.explore["noise"]
        if self.config.noise == "ou":
            before = jnp.where(first[:, None], 0.0, carry["noise"])
            moved = continuous_control.ornstein_uhlenbeck(before, scale * noise, self.config.noise_theta, 1.0)
            carry = {**carry, "noise": moved}
        else:
            moved = scale * noise
        return jnp.clip(action + explore[:, None] * moved, -1.0, 1.0), carry

    def bootstrap(self, target: Params, rows: Rows) -> tuple[Array, Array]:
        """The target critics' input after the window, and the action of the target policy there."""
        action = self.net.policy(target["policy"], self.views("policy", target["policy"], rows)[1])
        return self.views("critic", target["critic"], rows)[1], action

    def policy_loss(
        self, params: Params, critic: Params, rows: Rows, seen: Array, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """`-mean q_0(s, mu(s))`: the deterministic policy gradient (Silver et al. 2014)."""
        first = {"q0": critic["q0"]}
        action = self.net.policy(params["policy"], self.views("policy", params["policy"], rows)[0])
        loss = -jnp.mean(self.counted(rows) * self.net.q(first, seen, action)[0])
        return loss, {"policy": loss}
