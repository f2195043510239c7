"""`sequential`: one loop steps the actors in turn, then learns. The reference for every other topology."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shoal.core.blueprint import Blueprint
from shoal.core.program import Program, RoleSpec
from shoal.roles.learner import Sequential
from shoal.topologies.topology import AS_TUNED


@dataclass(frozen=True, kw_only=True)
class SequentialConfig:
    """Nothing to set."""


class SequentialTopology:
    Config = SequentialConfig
    about = "one loop: each actor in turn, then the update; no lag"
    apart = False
    mixed = False
    many_learners = False
    each_learns = False
    acting = 0
    if_parallel: tuple[str, ...] = ()
    usual = AS_TUNED

    def __init__(self, config: SequentialConfig) -> None:
        self.config = config

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        return True

    def unrolls(self, actors: int, learners: int) -> int:
        """One unroll from each actor."""
        return actors

    def program(self, blueprint: Blueprint) -> Program:
        return Program(
            roles=(RoleSpec(name="loop", build=partial(Sequential, blueprint), main=True, steps_env=True),),
            whole=blueprint,
        )
