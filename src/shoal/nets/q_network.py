"""Action values: encoder (convolutions, dense layers), then one head, or two that are combined (dueling).

Params: `{"q": {"trunk": {"conv0", ..., "hidden0", ...}, "head"}}`; dueling adds `value`, and `head` then gives advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Params
from shoal.core.config import Positive, replace
from shoal.core.errors import BadInput
from shoal.core.spec import Categorical, EnvSpec
from shoal.core.trajectory import Array
from shoal.nets import conv
from shoal.nets.initial import Plan, realise
from shoal.nets.mlp import dense, mlp, plan_dense, plan_mlp

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

    def init(self, key: Array) -> Params:
        shape = self.spec.obs.shape
        inputs = conv.flat_size(shape, self.config.conv) if self.spec.obs.is_image else shape[0]
        trunk = plan_mlp(inputs, self.config.hidden)
        if self.spec.obs.is_image:
            trunk |= conv.plan_conv(shape[-1], self.config.conv)
        features = self.config.hidden[-1] if self.config.hidden else inputs
        plan: Plan = {"trunk": trunk, "head": plan_dense(features, count_actions(self.spec), HEAD_GAIN)}
        if self.config.dueling:
            plan["value"] = plan_dense(features, 1, HEAD_GAIN)
        return realise({"q": plan}, key)

    def q(self, params: Params, obs: Array) -> Array:
        """[..., *shape] -> [..., actions]."""
        own, shape = params["q"], self.spec.obs.shape
        assert obs.shape[obs.ndim - len(shape) :] == shape, (obs.shape, shape)
        x = conv.convolve(own["trunk"], obs, self.config.conv) if self.spec.obs.is_image else obs
        x = mlp(own["trunk"], x, len(self.config.hidden), self.config.activation)
        out = dense(own["head"], x)
        if not self.config.dueling:
            return out
        return dense(own["value"], x) + out - out.mean(axis=-1, keepdims=True)


def count_actions(spec: EnvSpec) -> int:
    """The number of actions. Raises `BadInput` for spaces whose actions cannot be listed."""
    parts = spec.action.parts
    if not spec.action.scalar or len(parts) != 1 or not isinstance(parts[0], Categorical):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise BadInput(
            f"{spec.name}: its actions are {kinds}; action values need one Discrete space: use ppo, a2c or reinforce"
            + (", or td3 or sac" if kinds == "Continuous" else "")
        )
    return parts[0].sizes[0]
