"""The trajectory, which actors fill and learners read.

Rows are steps, columns environments. An episode that ends at row t (`boundary`) leaves its last observation in
`obs[t+1]`; row t+1 is the autoreset row (`valid` False), whose action was ignored; row t+2 is `first` of the next
episode. So `obs[t+1]` is always what followed row t, and a truncated episode bootstraps from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.core.record import Field, Record
from shoal.core.spec import EnvSpec

EARNED = "earned"  # in `carry`, where columns mix: each environment's discounted return before row 0

Array = Any  # a NumPy or a JAX array: the same code runs on both


class Trajectory(NamedTuple):
    """Raw observations and rewards; they are normalised only in `act` and `prepare`."""

    obs: Array  # [T+1, B, ...]  row T: where the policy would act next
    action: Array  # [T, B, ...]
    reward: Array  # [T, B]
    discount: Array  # [T, B]  1 - terminated, 0 also at a cut inside an episode; the algorithm multiplies by gamma
    boundary: Array  # [T, B]  the episode ended here, either way: traces stop
    valid: Array  # [T, B]  False where no action was chosen: the autoreset row, a dropped step
    first: Array  # [T+1, B]  an episode starts here: the carry is zeroed before this row
    extras: dict[str, Array]  # {name: [T, B, ...]} from act
    carry: dict[str, Array]  # recurrent state before row 0, {} for feed-forward; `EARNED` where columns mix
    version: Array  # [T, B]  of the weights that acted


class Transitions(NamedTuple):
    """Self-contained rows for a replay: the n steps that follow an action. Arrays [..., N]."""

    obs: Array
    action: Array
    reward: Array  # of the n steps, discounted
    discount: Array  # applied to the value of `next_obs`, gamma included; 0 after a termination
    next_obs: Array  # the observation after the n steps


class Sequences(NamedTuple):
    """Self-contained rows for a replay that recurrent nets learn from: L consecutive steps of one environment. Arrays [N, ...]."""

    obs: Array  # [N, L+1, ...]
    action: Array  # [N, L, ...]
    reward: Array  # [N, L]  of the n steps from there, discounted
    discount: Array  # [N, L]  applied to the value after them, gamma included; 0 after a termination
    length: Array  # [N, L] int32  their number: the value is that of step t + length
    learnt: Array  # [N, L]  steps that count in the loss: an action was chosen, and the memory is warm
    first: Array  # [N, L+1]  an episode starts here: the memory is zeroed before this step
    memory: Array  # [N, M]  the recurrent state before step 0, as it was when acting


def trajectory_record(
    spec: EnvSpec,
    unroll: int,
    envs: int,
    extras: Mapping[str, Any] | None = None,
    carry: Mapping[str, Any] | None = None,
) -> Record:
    """The record of one unroll. `extras` and `carry` map names to arrays (or structures) shaped [B, ...].

    The extra field `clock` says when the unroll began and ended, on the machine's monotonic clock.
    """
    t, b = unroll, envs
    fields = [
        Field("obs", (t + 1, b, *spec.obs.shape), spec.obs.dtype.name),
        Field("action", (t, b, *spec.action.shape), spec.action.dtype.name),
        Field("reward", (t, b), "float32"),
        Field("discount", (t, b), "float32"),
        Field("boundary", (t, b), "bool"),
        Field("valid", (t, b), "bool"),
        Field("first", (t + 1, b), "bool"),
        Field("version", (t, b), "int32"),
        Field("clock", (2,), "float64"),
    ]
    fields += [Field(f"extras/{name}", (t, *a.shape), a.dtype.name) for name, a in (extras or {}).items()]
    fields += [Field(f"carry/{name}", tuple(a.shape), a.dtype.name) for name, a in (carry or {}).items()]
    return Record(tuple(fields))


def as_trajectory(slot: Mapping[str, Array]) -> Trajectory:
    """The arrays of a slot as a trajectory; nothing is copied."""

    def under(prefix: str) -> dict[str, Array]:
        return {name.removeprefix(prefix): a for name, a in slot.items() if name.startswith(prefix)}

    plain = {name: slot[name] for name in Trajectory._fields if name in slot}
    return Trajectory(**plain, extras=under("extras/"), carry=under("carry/"))
