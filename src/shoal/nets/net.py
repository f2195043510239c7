"""The protocol of nets, and the settings of Shoal's own. No JAX here, so that the command line can show them quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from shoal.core.algorithm import Params
from shoal.core.config import Positive
from shoal.core.trajectory import Array


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """The shape of policy and value function."""

    hidden: tuple[Positive, ...] = (64, 64)
    """Widths of the dense layers, after the convolutions if there are any. Empty: none."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation after each dense layer. Convolutions are always followed by relu."""
    shared: bool = False
    """One trunk for policy and value instead of one each. A recurrent net always shares its trunk."""
    cell: Literal["none", "lstm", "gru"] = "none"
    """Memory after the dense layers: none, or a recurrent cell."""
    cell_size: Positive = 64
    """Width of the recurrent cell."""
    state_scale: bool = False
    """The spread of continuous actions depends on the observation, instead of being one number per action."""
    bounded: bool = False
    """Means of continuous actions pass through tanh, so that no policy can drift out of the box, where actions are clipped."""
    conv: tuple[str, ...] = ("32x8/4", "64x4/2", "64x3/1")
    """Convolutions for images, each as filters x kernel / stride. Not used for vectors."""


@runtime_checkable
class Net(Protocol):
    """Policy and value as functions of params. Hashable: two equal ones compile once.

    Shapes: B environments, P = `ops.distributions.parameter_size(spec.action)`.
    """

    @property
    def recurrent(self) -> bool:
        """Whether `carry` matters; then `forward` and `value` take only [T, B, ...]."""

    def init(self, key: Array) -> Params:
        """Float32 params. Those that only the value needs are under "value", which is never sent to actors."""

    def initial_carry(self, envs: int) -> dict[str, Array]:
        """The recurrent state at the start of an episode, arrays [B, ...]; {} for feed-forward."""

    def policy(
        self, params: Params, obs: Array, carry: dict[str, Array], first: Array
    ) -> tuple[Array, dict[str, Array]]:
        """One step: (parameters of the action's distribution [B, P], carry). Never reads params["value"].

        obs [B, ...]; first [B]: the carry is zeroed before this observation.
        """

    def forward(self, params: Params, obs: Array, carry: dict[str, Array], first: Array) -> tuple[Array, Array]:
        """(parameters of the action's distribution [..., P], value [...]) of obs [..., *shape].

        Feed-forward: any leading axes, `carry` and `first` unread. Recurrent: obs [T, B, ...] and first [T, B] from the
        carry before row 0.
        """

    def value(self, params: Params, obs: Array, carry: dict[str, Array], first: Array) -> Array:
        """The value alone, as in `forward`."""
