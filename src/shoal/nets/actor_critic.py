"""Policy and value from one description: encoder (convolutions, dense layers), optional recurrent cell, two heads.

Params, separate:  `{"policy": {"trunk", "head", "log_std"}, "value": {"trunk", "head"}}`
Params, shared:    `{"trunk", "policy": {"head", "log_std"}, "value": {"head"}}`
A trunk has `conv0`, ..., `hidden0`, ..., `cell`; `log_std` exists for continuous actions unless their spread depends on
the observation.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Params
from shoal.core.config import replace
from shoal.core.spec import Continuous, EnvSpec
from shoal.core.trajectory import Array
from shoal.nets import conv, recurrent
from shoal.nets.initial import Fill, Plan, realise
from shoal.nets.mlp import dense, mlp, plan_dense, plan_mlp
from shoal.nets.net import Net, NetConfig
from shoal.nets.recurrent import Carry
from shoal.ops.distributions import parameter_size, part_size

__all__ = ["ActorCritic", "Net", "NetConfig"]

POLICY_GAIN = 0.01  # makes the first policy nearly uniform for any observation
VALUE_GAIN = 1.0
FIRST_LOG_STD = -0.5  # a spread of 0.6 in normalised coordinates: a tenth of the first actions lie outside the bounds


@dataclass(frozen=True)
class ActorCritic:
    """Shoal's own net. Vectors enter as they are, uint8 images scaled to 0..1.

    A recurrent net (encoder, cell, heads) always shares its trunk: a critic's own carry would have to be computed while
    acting, which computes only the policy.
    """

    config: NetConfig
    spec: EnvSpec

    Config = NetConfig

    def __post_init__(self) -> None:
        replace(self.config, {}, "net.")  # checks a config made in Python by the same rules as command-line words
        for layer in self.config.conv:
            conv.parse(layer)
        if self.spec.obs.is_image:
            conv.flat_size(self.spec.obs.shape, self.config.conv)  # refuses layers that do not fit

    @property
    def recurrent(self) -> bool:
        return self.config.cell != "none"

    @property
    def shared(self) -> bool:
        return self.config.shared or self.recurrent

    def init(self, key: Array) -> Params:
        policy = self._plan_policy_head()
        value: Plan = {"head": plan_dense(self._features, 1, VALUE_GAIN)}
        if self.shared:
            return realise({"trunk": self._plan_trunk(), "policy": policy, "value": value}, key)
        trunk = self._plan_trunk()
        return realise({"policy": {"trunk": trunk, **policy}, "value": {"trunk": trunk, **value}}, key)

    def initial_carry(self, envs: int) -> Carry:
        return recurrent.zero_carry(self.config.cell, envs, self.config.cell_size) if self.recurrent else {}

    def policy(self, params: Params, obs: Array, carry: Carry, first: Array) -> tuple[Array, Carry]:
        trunk = params["trunk"] if self.shared else params["policy"]["trunk"]
        x = self._encode(trunk, obs)
        if self.recurrent:
            x, carry = recurrent.step(trunk["cell"], self.config.cell, x, carry, first)
        return self._policy_head(params["policy"], x), carry

    def forward(self, params: Params, obs: Array, carry: Carry, first: Array) -> tuple[Array, Array]:
        x = self._trunk(params["trunk"] if self.shared else params["policy"]["trunk"], obs, carry, first)
        y = x if self.shared else self._trunk(params["value"]["trunk"], obs, carry, first)
        return self._policy_head(params["policy"], x), dense(params["value"]["head"], y)[..., 0]

    def value(self, params: Params, obs: Array, carry: Carry, first: Array) -> Array:
        x = self._trunk(params["trunk"] if self.shared else params["value"]["trunk"], obs, carry, first)
        return dense(params["value"]["head"], x)[..., 0]

    @property
    def _encoded(self) -> int:
        """The width of the encoder's output."""
        if self.config.hidden:
            return self.config.hidden[-1]
        return self._inputs

    @property
    def _inputs(self) -> int:
        """The width of the dense layers' input."""
        shape = self.spec.obs.shape
        return conv.flat_size(shape, self.config.conv) if self.spec.obs.is_image else shape[0]

    @property
    def _features(self) -> int:
        """The width of the heads' input."""
        return self.config.cell_size if self.recurrent else self._encoded

    @property
    def _own_scale(self) -> bool:
        """Whether log standard deviations are params, rather than outputs of the head."""
        return not self.config.state_scale and any(isinstance(part, Continuous) for part in self.spec.action.parts)

    def _log_std_columns(self) -> list[int]:
        """Mask of the distribution's parameters that are log standard deviations."""
        at = 0
        columns: list[int] = []
        for part in self.spec.action.parts:
            if isinstance(part, Continuous):
                columns += range(at + part.width, at + 2 * part.width)
            at += part_size(part)
        return columns

    def _plan_trunk(self) -> Plan:
        trunk = plan_mlp(self._inputs, self.config.hidden)
        if self.spec.obs.is_image:
            trunk |= conv.plan_conv(self.spec.obs.shape[-1], self.config.conv)
        if self.recurrent:
            trunk["cell"] = recurrent.plan_cell(self.config.cell, self._encoded, self.config.cell_size)
        return trunk

    def _plan_policy_head(self) -> Plan:
        size, scales = parameter_size(self.spec.action), self._log_std_columns()
        if self._own_scale:
            head = plan_dense(self._features, size - len(scales), POLICY_GAIN)
            return {"head": head, "log_std": Fill((len(scales),), FIRST_LOG_STD)}
        bias = Fill((size,), tuple(FIRST_LOG_STD if i in scales else 0.0 for i in range(size)))
        return {"head": {**plan_dense(self._features, size, POLICY_GAIN), "b": bias}}

    def _policy_head(self, params: Params, x: Array) -> Array:
        """The distribution's parameters: the head's outputs, with the log standard deviations inserted."""
        out = dense(params["head"], x)
        if self.config.bounded:
            out = jnp.where(self._means(out.shape[-1]), jnp.tanh(out), out)
        if not self._own_scale:
            return out
        scale = jnp.broadcast_to(params["log_std"], (*out.shape[:-1], params["log_std"].shape[-1]))
        pieces, at, at_scale = [], 0, 0
        for part in self.spec.action.parts:
            width = part.width if isinstance(part, Continuous) else part_size(part)
            pieces.append(out[..., at : at + width])
            at += width
            if isinstance(part, Continuous):
                pieces.append(scale[..., at_scale : at_scale + width])
                at_scale += width
        return jnp.concatenate(pieces, -1)

    def _means(self, size: int) -> np.ndarray:
        """[size] bool: which outputs of the head are means of continuous actions."""
        mask, at = np.zeros(size, bool), 0
        for part in self.spec.action.parts:
            if isinstance(part, Continuous):
                mask[at : at + part.width] = True
                at += part.width * (1 if self._own_scale else 2)
            else:
                at += part_size(part)
        return mask

    def _encode(self, trunk: Params, obs: Array) -> Array:
        """[..., *shape] -> [..., width]."""
        shape = self.spec.obs.shape
        assert obs.shape[obs.ndim - len(shape) :] == shape, (obs.shape, shape)
        x = conv.convolve(trunk, obs, self.config.conv) if self.spec.obs.is_image else obs
        return mlp(trunk, x, len(self.config.hidden), self.config.activation)

    def _trunk(self, trunk: Params, obs: Array, carry: Carry, first: Array) -> Array:
        """The heads' input for a whole unroll (or, without a cell, for any batch)."""
        x = self._encode(trunk, obs)
        return recurrent.scan(trunk["cell"], self.config.cell, x, carry, first) if self.recurrent else x
