"""Function approximators: multi-layer perceptron, convolutions, recurrent cells, and the nets made of them.

This package holds plain functions on nested dicts of float32 arrays; the names in those dicts are the weights' layout. May
import: JAX, NumPy, `ops`, `core`. You may change: anything that keeps `init` deterministic and the dicts' names, which
saved weights follow. `Net` is the protocol for a net of your own. Looking for distributions over actions?
`ops.distributions`. For losses? `ops.losses`. For the callers of a net? `algos`.

Importing `Net` and `NetConfig` does not import JAX; import `ActorCritic` from `shoal.nets.actor_critic`.
"""

from shoal.nets.net import Net, NetConfig

__all__ = ["Net", "NetConfig"]
