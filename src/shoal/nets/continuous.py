"""Policy and critics for continuous actions: a policy of observations, critics of observations and actions.

Params: `{"critic": {"q0": {"trunk", "head"}, "q1", ...}, "policy": {"trunk", "head"}}`. A trunk has `hidden0`, ..., and with
layer norm `norm0`, .... A recurrent net has a `cell` beside the trunks: one of the policy's, one that all critics share. Each
sees the observations, and trunks see its output beside the newest observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Params
from shoal.core.config import Positive, replace
from shoal.core.errors import BadInput
from shoal.core.spec import Continuous, EnvSpec
from shoal.core.trajectory import Array
from shoal.nets import recurrent
from shoal.nets.initial import Fill, Plan, realise
from shoal.nets.mlp import ACTIVATIONS, dense, plan_dense, plan_mlp
from shoal.nets.recurrent import Carry

POLICY_GAIN = 0.01  # the first actions are near the middle, where tanh has a slope
CRITIC_GAIN = 1.0
LOG_STD_RANGE = (-10.0, 2.0)
NORM_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class ContinuousNetConfig:
    """Shape of policy and critics."""

    hidden: tuple[Positive, ...] = (256, 256)
    """Widths of the dense layers of the policy and of each critic. Empty: none."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each dense layer."""
    layer_norm: bool = False
    """Standardise the output of each dense layer, before its activation."""
    cell: Literal["none", "lstm", "gru"] = "none"
    """Memory of observations before the dense layers: none, or one recurrent cell for the policy and one for the critics."""
    cell_size: Positive = 64
    """Width of each recurrent cell."""


@dataclass(frozen=True)
class ContinuousNet:
    """Shared code of both nets. Hashable, so that equal ones are compiled once."""

    config: ContinuousNetConfig
    spec: EnvSpec

    Config: ClassVar[type[Any]] = ContinuousNetConfig
    outputs: ClassVar[int]  # of the policy, for each entry of an action

    def __post_init__(self) -> None:
        replace(self.config, {}, "net.")  # apply the checks of the command line to configs built in Python
        count_entries(self.spec)
        if self.spec.obs.is_image:
            raise BadInput(f"{self.spec.name}: its observations are images; --net {self.name} takes vectors: use ppo")

    @property
    def name(self) -> str:
        return next(name for name, net in CONTINUOUS_NETS.items() if net is type(self))

    @property
    def recurrent(self) -> bool:
        return self.config.cell != "none"

    def init(self, key: Array, critics: int) -> Params:
        width, entries, cell = self.spec.obs.shape[0], count_entries(self.spec), {}
        seen = width
        if self.recurrent:
            cell["cell"] = recurrent.plan_cell(self.config.cell, width, self.config.cell_size)
            seen += self.config.cell_size
        critic = {f"q{i}": self._plan(seen + entries, 1, CRITIC_GAIN) for i in range(critics)}
        policy = self._plan(seen, entries * self.outputs, POLICY_GAIN)
        return realise({"critic": {**critic, **cell}, "policy": {**policy, **cell}}, key)

    def initial_carry(self, envs: int) -> Carry:
        return recurrent.zero_carry(self.config.cell, envs, self.config.cell_size) if self.recurrent else {}

    def step(self, part: Params, obs: Array, carry: Carry, first: Array) -> tuple[Array, Carry]:
        """One step of the cell of `part`, the params under "policy" or "critic": (what its trunks see [B, ...], carry)."""
        x, carry = recurrent.step(part["cell"], self.config.cell, obs, carry, first)
        return jnp.concatenate([obs, x], axis=-1), carry

    def sequence(self, part: Params, obs: Array, carry: Carry, first: Array, burn_in: int) -> Array:
        """The input of the trunks of `part` for obs [T, B, n]. No gradient passes row `burn_in` backwards."""
        x = recurrent.scan_after_burn_in(part["cell"], self.config.cell, obs, carry, first, burn_in)
        return jnp.concatenate([obs, x], axis=-1)

    def q(self, critic: Params, obs: Array, action: Array) -> Array:
        """Values of observations [..., n] and actions [..., A]: [C, ...]. Uses the params under "critic"."""
        x = jnp.concatenate([obs, action], axis=-1)
        return jnp.stack([self._forward(critic[name], x)[..., 0] for name in sorted(critic) if name != "cell"])

    def _plan(self, inputs: int, outputs: int, gain: float) -> Plan:
        widths = self.config.hidden
        trunk = plan_mlp(inputs, widths)
        if self.config.layer_norm:
            trunk |= {f"norm{i}": {"gain": Fill((n,), 1.0), "bias": Fill((n,))} for i, n in enumerate(widths)}
        return {"trunk": trunk, "head": plan_dense(widths[-1] if widths else inputs, outputs, gain)}

    def _forward(self, params: Params, x: Array) -> Array:
        trunk = params["trunk"]
        for i in range(len(self.config.hidden)):
            x = dense(trunk[f"hidden{i}"], x)
            if self.config.layer_norm:
                x = layer_norm(trunk[f"norm{i}"], x)
            x = ACTIVATIONS[self.config.activation](x)
        return dense(params["head"], x)


@dataclass(frozen=True)
class DeterministicNet(ContinuousNet):
    """Deterministic policy: one action per observation, for DDPG and TD3."""

    outputs: ClassVar[int] = 1

    def policy(self, policy: Params, obs: Array) -> Array:
        """Actions [..., A] in [-1, 1] at observations [..., n]. Uses the params under "policy"."""
        return jnp.tanh(self._forward(policy, obs))


@dataclass(frozen=True)
class SquashedGaussianNet(ContinuousNet):
    """Stochastic policy: a tanh-squashed normal distribution per observation, for SAC."""

    outputs: ClassVar[int] = 2

    def normal(self, policy: Params, obs: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation before tanh, each [..., A], at observations [..., n]. Uses the params under "policy"."""
        mean, log_std = jnp.split(self._forward(policy, obs), 2, axis=-1)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)


CONTINUOUS_NETS: dict[str, type[ContinuousNet]] = {
    "deterministic": DeterministicNet,
    "squashed_gaussian": SquashedGaussianNet,
}


def layer_norm(params: Params, x: Array) -> Array:
    """Subtract each row's mean and divide by its standard deviation. Ba et al. 2016, https://arxiv.org/abs/1607.06450."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + NORM_EPSILON) * params["gain"] + params["bias"]


def count_entries(spec: EnvSpec) -> int:
    """A, the number of entries of an action. Refuses spaces that are not one Box."""
    parts = spec.action.parts
    if len(parts) != 1 or not isinstance(parts[0], Continuous):
        kinds = spec.action.spaces
        instead = "dqn or ppo" if spec.action.scalar else "ppo, a2c or reinforce"
        raise BadInput(
            f"{spec.name}: its actions are {kinds}; ddpg, td3 and sac need one Box of real numbers: use {instead}"
        )
    return parts[0].width


def unbounded(spec: EnvSpec) -> list[bool]:
    """Mask [A] of the entries of an action without finite bounds."""
    part = spec.action.parts[0]
    assert isinstance(part, Continuous)
    return [not (math.isfinite(a) and math.isfinite(b)) for a, b in zip(part.low, part.high, strict=True)]
