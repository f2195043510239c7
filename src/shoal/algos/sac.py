"""SAC: a stochastic policy rewarded for entropy, with a temperature that keeps the entropy at its target.

Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905. Deviations: all gradients of a minibatch use the weights before
it; the temperature's loss is linear in its logarithm; gradients with a large norm are clipped; n-step rows (without the entropy
of intermediate steps), prioritized replay, layer norm and normalisation are options; actions are random until the first gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from shoal.algos.continuous import ContinuousConfig, ContinuousControl, Rows
from shoal.core.algorithm import ActorState, LearnerState, ParamGroup, Params
from shoal.core.config import NonNegativeFloat, PositiveFloat
from shoal.core.trajectory import Array
from shoal.nets.continuous import SquashedGaussianNet, count_entries
from shoal.ops import continuous_control


@dataclass(frozen=True, kw_only=True)
class SACConfig(ContinuousConfig):
    """Soft actor-critic."""

    temperature: PositiveFloat = 1.0
    """weight of the entropy at the start, in units of the scaled rewards"""
    temperature_rate: NonNegativeFloat = 1.0
    """learning rate of the temperature, as a multiple of the critics'; 0 keeps the temperature constant"""
    target_entropy: float | None = None
    """target of the policy's entropy; by default minus the number of entries of an action"""


@final
@dataclass(frozen=True)
class SAC(ContinuousControl[SACConfig, SquashedGaussianNet]):
    Config: ClassVar[type[Any]] = SACConfig
    net_name: ClassVar[str] = "squashed_gaussian"
    critics: ClassVar[int] = 2
    about: ClassVar[str] = "soft actor-critic: rewards plus entropy, with an adaptive temperature (Box actions)"

    @property
    def groups(self) -> tuple[ParamGroup, ...]:
        critic, policy = ParamGroup("critic"), ParamGroup("policy", self.config.policy_rate)
        return critic, policy, ParamGroup("temperature", self.config.temperature_rate)

    @property
    def target_entropy(self) -> float:
        given = self.config.target_entropy
        return -float(count_entries(self.task.spec)) if given is None else given

    def init(self, key: Array) -> LearnerState:
        params = self.net.init(key, self.critics)
        params["temperature"] = {"log": jnp.asarray(log(self.config.temperature), jnp.float32)}
        return self.begun(params, self.optimiser.init(params), {"critic": params["critic"]})

    def explore(self, state: LearnerState) -> dict[str, Array]:
        return {}

    def noise_carry(self, envs: int) -> dict[str, Array]:
        return {}

    def explored(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, noise: Array, explore: Array
    ) -> tuple[Array, dict[str, Array]]:
        mean, log_std = self.net.normal(actor.params["policy"], obs)
        return jnp.tanh(mean + explore[:, None] * jnp.exp(log_std) * noise), carry

    def _sampled(self, policy: Params, seen: Array, key: Array) -> tuple[Array, Array]:
        mean, log_std = self.net.normal(policy, seen)
        return continuous_control.squashed_sample(mean, log_std, jax.random.normal(key, mean.shape, mean.dtype))

    def target(self, state: LearnerState, rows: Rows, key: Array) -> Array:
        """`r + discount (min_i q'_i(s', a') - alpha log pi(a' | s'))` with a' from the newest policy."""
        policy, critic = state.params["policy"], state.extra["target"]["critic"]
        action, log_pi = self._sampled(policy, self.views("policy", policy, rows)[1], key)
        q_t = self.net.q(critic, self.views("critic", critic, rows)[1], action)
        alpha = jnp.exp(state.params["temperature"]["log"])
        return continuous_control.q_target(rows.reward, rows.discount, q_t, -alpha * log_pi)

    def policy_loss(
        self, params: Params, critic: Params, rows: Rows, seen: Array, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """`mean(alpha log pi(a | s) - min_i q_i(s, a))`, and the temperature's loss."""
        counted = self.counted(rows)
        action, log_pi = self._sampled(params["policy"], self.views("policy", params["policy"], rows)[0], key)
        log_alpha = params["temperature"]["log"]
        alpha = jax.lax.stop_gradient(jnp.exp(log_alpha))
        loss = jnp.mean(counted * (alpha * log_pi - jnp.min(self.net.q(critic, seen, action), axis=0)))
        adapting = continuous_control.temperature_loss(log_alpha, log_pi, self.target_entropy, counted)
        metrics = {"policy": loss, "policy/entropy": -jnp.mean(counted * log_pi), "policy/temperature": alpha}
        return loss + adapting, metrics

    @property
    def delay(self) -> int:
        return 1
