"""Action values: encoder (convolutions, dense layers), optional recurrent cell, then one head, or two combined (dueling).

Params: `{"q": {"trunk": {"conv0", ..., "hidden0", ..., "cell"}, "head"}}`; dueling adds `value`, and `head` then gives
advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Params
from shoal.core.config import Positive, replace
from shoal.core.errors import BadInput
from shoal.core.spec import Categorical, EnvSpec
from shoal.core.trajectory import Array
from shoal.nets import conv, recurrent
from shoal.nets.initial import Plan, realise
from shoal.nets.mlp import dense, mlp, plan_dense, plan_mlp
from shoal.nets.recurrent import Carry

HEAD_GAIN = 0.01  # makes the first values nearly zero, so that no action is preferred


@dataclass(frozen=True, kw_only=True)
class QNetConfig:
    """The shape of the action values."""

    hidden: tuple[Positive, ...] = (64, 64)
    """Widths of the dense layers, after the convolutions if there are any. Empty: none."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each dense layer. Convolutions are always followed by relu."""
    dueling: bool = False
    """Two heads, one for the state's value and one for the actions' advantages, combined at the end."""
    cell: Literal["none", "lstm", "gru"] = "none"
    """Memory after the dense layers: none, or a recurrent cell, which learns from sequences of steps."""
    cell_size: Positive = 64
    """Width of the recurrent cell."""
    conv: tuple[str, ...] = ("32x8/4", "64x4/2", "64x3/1")
    """Convolutions for images, each as filters x kernel / stride. Not used for vectors."""


@dataclass(frozen=True)
class QNetwork:
    """One value for each action of a single Discrete space. Hashable: two equal ones compile once.

    Dueling: Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9 (advantages minus their mean).
    """

    config: QNetConfig
    spec: EnvSpec

    Config = QNetConfig

    def __post_init__(self) -> None:
        replace(self.config, {}, "net.")  # checks a config made in Python by the same rules as command-line words
        count_actions(self.spec)
        for layer in self.config.conv:
            conv.parse(layer)
        if self.spec.obs.is_image:
            conv.flat_size(self.spec.obs.shape, self.config.conv)

    @property
    def recurrent(self) -> bool:
        return self.config.cell != "none"

    def init(self, key: Array) -> Params:
        shape = self.spec.obs.shape
        inputs = conv.flat_size(shape, self.config.conv) if self.spec.obs.is_image else shape[0]
        trunk = plan_mlp(inputs, self.config.hidden)
        if self.spec.obs.is_image:
            trunk |= conv.plan_conv(shape[-1], self.config.conv)
        features = self.config.hidden[-1] if self.config.hidden else inputs
        if self.recurrent:
            trunk["cell"] = recurrent.plan_cell(self.config.cell, features, self.config.cell_size)
            features = self.config.cell_size
        plan: Plan = {"trunk": trunk, "head": plan_dense(features, count_actions(self.spec), HEAD_GAIN)}
        if self.config.dueling:
            plan["value"] = plan_dense(features, 1, HEAD_GAIN)
        return realise({"q": plan}, key)

    def q(self, params: Params, obs: Array) -> Array:
        """[..., *shape] -> [..., actions], without a cell."""
        assert not self.recurrent, "values depend on what was seen before: `step` or `sequence`"
        return self._heads(params["q"], self._encode(params["q"]["trunk"], obs))

    def initial_carry(self, envs: int) -> Carry:
        return recurrent.zero_carry(self.config.cell, envs, self.config.cell_size) if self.recurrent else {}

    def step(self, params: Params, obs: Array, carry: Carry, first: Array) -> tuple[Array, Carry]:
        """One step of a recurrent net: obs [B, ...], first [B] -> (values [B, actions], carry)."""
        trunk = params["q"]["trunk"]
        x, carry = recurrent.step(trunk["cell"], self.config.cell, self._encode(trunk, obs), carry, first)
        return self._heads(params["q"], x), carry

    def sequence(self, params: Params, obs: Array, carry: Carry, first: Array, burn_in: int) -> Array:
        """Values [T, B, actions] of obs [T, B, ...] from the carry before row 0. No gradient passes row `burn_in` backwards."""
        trunk = params["q"]["trunk"]
        x = self._encode(trunk, obs)
        x = recurrent.scan_after_burn_in(trunk["cell"], self.config.cell, x, carry, first, burn_in)
        return self._heads(params["q"], x)

    def _encode(self, trunk: Params, obs: Array) -> Array:
        shape = self.spec.obs.shape
        assert obs.shape[obs.ndim - len(shape) :] == shape, (obs.shape, shape)
        x = conv.convolve(trunk, obs, self.config.conv) if self.spec.obs.is_image else obs
        return mlp(trunk, x, len(self.config.hidden), self.config.activation)

    def _heads(self, own: Params, x: Array) -> Array:
        out = dense(own["head"], x)
        if not self.config.dueling:
            return out
        return dense(own["value"], x) + out - out.mean(axis=-1, keepdims=True)


def count_actions(spec: EnvSpec) -> int:
    """The number of actions. Raises `BadInput` for spaces whose actions cannot be listed."""
    parts = spec.action.parts
    if not spec.action.scalar or len(parts) != 1 or not isinstance(parts[0], Categorical):
        kinds = spec.action.spaces
        raise BadInput(
            f"{spec.name}: its actions are {kinds}; action values need one Discrete space: use ppo, a2c or reinforce"
            + (", or td3 or sac" if kinds == "Box" else "")
        )
    return parts[0].sizes[0]
