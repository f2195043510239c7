"""`sync`: k actors and one learner in lockstep: broadcast, collect, learn.

    actor 0 ─┐                     ┌─> actor 0
    actor 1 ─┼─ unrolls ─> learner ─ weights ─┼─> actor 1
    ...     ─┘                     └─> ...

With `overlap` the actors collect unroll n+1 while the learner trains on unroll n, so they act with weights one version old.
Which version acts on which unroll is fixed here, so that every runtime computes the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shoal.core.blueprint import Blueprint
from shoal.core.program import BoardSpec, PortSpec, Program, RoleSpec, StreamSpec
from shoal.roles.actor import Actor
from shoal.roles.learner import Learner, OneOfEach
from shoal.topologies.topology import AS_TUNED


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """Lockstep of actors and one learner."""

    overlap: bool | None = None
    """collect the next unroll while the learner trains (lag 1); by default if roles run at the same time"""


class SyncTopology:
    Config = SyncConfig
    about = "k actors, one learner: broadcast, collect, learn; overlapped, with a lag of one version"
    apart = False
    mixed = False
    many_learners = False
    each_learns = False
    acting = 0
    if_parallel: tuple[str, ...] = ("overlap",)
    usual = AS_TUNED

    def __init__(self, config: SyncConfig) -> None:
        self.config = config

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        return True

    def unrolls(self, actors: int, learners: int) -> int:
        """One unroll from each actor."""
        return actors

    def program(self, blueprint: Blueprint) -> Program:
        # Partial and not a lambda: the schedule is sent to other processes.
        schedule = partial(acting_version, blueprint.start, 1 if self.config.overlap else 0)
        actors = tuple(f"actor-{i}" for i in range(blueprint.actors))
        roles = [RoleSpec(name="learner", build=partial(Learner, blueprint, schedule, OneOfEach), main=True)]
        roles += [
            RoleSpec(name=name, build=partial(Actor, blueprint, i, schedule), steps_env=True, core=i)
            for i, name in enumerate(actors)
        ]
        ports: dict[str, PortSpec] = {
            # Two slots per lane: one is learnt from while the other is filled.
            "unrolls": StreamSpec(producers=actors, consumer="learner", depth=2, record=blueprint.record),
            "weights": BoardSpec(writer="learner", readers=actors, size=blueprint.layout.size, history=2),
        }
        return Program(roles=tuple(roles), ports=ports)


def acting_version(start: int, lag: int, unroll: int) -> int:
    """The version that acts on an unroll: its own number minus the lag, and at least `start`."""
    return max(start, unroll - lag)
