"""Function approximators: multi-layer perceptron, convolutions, recurrent cells, and the actor-critic made of them.

Here live plain functions on nested dicts of float32 arrays; the names in those dicts are the weights' layout. May
import: JAX, NumPy, `ops`, `core`. You may change: anything that keeps `init` deterministic and the dicts' names, which
saved weights follow. `Net` is what a net of one's own must have. Looking for distributions over actions?
`ops.distributions`. For losses? `ops.losses`. For what calls a net? `algos`.

`Net` and `NetConfig` come without JAX; import `ActorCritic` from `shoal.nets.actor_critic`.
"""

from shoal.nets.net import Net, NetConfig

__all__ = ["Net", "NetConfig"]
