"""`dyna`: one actor on the real environment, the others plan with a model of it.

    actor 0 ── unrolls ──> learner ── weights ──> actor 0, planners
                             │ ^
         real rows, scales   v └── imagined ── planner 1 ─┐
                           pool ─────────────> planner 2 ─┼─ model (a Table)
                                               ...       ─┘

Planners train one shared world model on the real rows, and imagine from them with the newest policy. The learner takes the
blocks that are ready and learns from them at a ratio that it controls; a planner waits until its block is taken. Only real
steps and episodes are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

from shoal.algos.dyna_q import DynaQ
from shoal.core.blueprint import Blueprint
from shoal.core.config import NonNegative, NonNegativeFloat, Positive
from shoal.core.errors import BadInput
from shoal.core.program import BoardSpec, PoolSpec, PortSpec, Program, RoleSpec, StreamSpec, TableSpec
from shoal.learning.replay_update import row_record
from shoal.roles.actor import Actor
from shoal.roles.dyna import PlannedUnrolls
from shoal.roles.learner import Learner
from shoal.roles.planner import Planner, block_record, model_layout, scales_layout
from shoal.topologies.sync import acting_version
from shoal.topologies.topology import AS_TUNED


@dataclass(frozen=True, kw_only=True)
class DynaConfig:
    """One real actor, and planners."""

    explorers: NonNegative = 0
    """number of planners that seek what the model knows least, instead of following the policy"""
    consistency: Literal["hogwild", "lock"] = "lock"
    """consistency of the model that the planners share"""
    depth: Positive = 1
    """blocks that a planner may have ready; more keeps planners busy, but their imagined rows get older"""
    rounds: NonNegativeFloat = 1.0
    """rounds of planning, of all planners together, that the learner waits for at each unroll: this saves real experience; 0
    waits for none, which takes less time if real steps are cheap"""
    overlap: bool | None = None
    """collect the next unroll while the learner trains (lag 1); by default if roles run at the same time"""


class DynaTopology:
    Config = DynaConfig
    about = "one actor on the real environment; the others train a world model and imagine with it (dyna_q)"
    apart = False
    mixed = False
    many_learners = False
    each_learns = False
    acting = 1  # actor 0; the others plan
    if_parallel: tuple[str, ...] = ("overlap",)
    usual = AS_TUNED

    def __init__(self, config: DynaConfig) -> None:
        self.config = config

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        return True

    def unrolls(self, actors: int, learners: int) -> int:
        if actors < 2:
            raise BadInput(
                f"--actors is {actors}: topology 'dyna', for dyna_q, needs at least 2, one that acts and one that plans"
            )
        if self.config.explorers > actors - 1:
            raise BadInput(f"--topology.explorers is {self.config.explorers}: there are only {actors - 1} planners")
        return 1

    def program(self, blueprint: Blueprint) -> Program:
        if "dyna" not in blueprint.algorithm.topologies:
            raise BadInput("topology 'dyna' plans with a world model, which only dyna_q has: use --algo dyna_q")
        algorithm = cast(DynaQ, blueprint.algorithm)  # what it declares to fit, it has: a world model
        schedule = partial(acting_version, blueprint.start, 1 if self.config.overlap else 0)
        planners = tuple(f"planner-{i}" for i in range(1, blueprint.actors))
        explorers = planners[len(planners) - self.config.explorers :] if self.config.explorers else ()
        roles = [
            RoleSpec(
                name="learner",
                build=partial(Learner, blueprint, schedule, partial(PlannedUnrolls, algorithm, self.config.rounds)),
                main=True,
            )
        ]
        roles.append(RoleSpec(name="actor-0", build=partial(Actor, blueprint, 0, schedule), steps_env=True, core=0))
        roles += [
            RoleSpec(
                name=name,
                build=partial(Planner, blueprint, algorithm, lane, name in explorers),
                kind="planner",
                core=lane + 1,
            )
            for lane, name in enumerate(planners)
        ]
        units = scales_layout(algorithm).size
        ports: dict[str, PortSpec] = {
            "unrolls": StreamSpec(producers=("actor-0",), consumer="learner", depth=2, record=blueprint.record),
            "weights": BoardSpec(writer="learner", readers=("actor-0",), size=blueprint.layout.size, history=2),
            "scales": BoardSpec(writer="learner", readers=(), size=units, history=2),
            "real": PoolSpec(workers=1, slots=algorithm.experience.capacity, record=row_record(blueprint)),
            "model": TableSpec(
                workers=planners, size=model_layout(algorithm).size, consistency=self.config.consistency
            ),
            "imagined": StreamSpec(
                producers=planners,
                consumer="learner",
                depth=self.config.depth,
                record=block_record(blueprint, algorithm),
            ),
        }
        return Program(roles=tuple(roles), ports=ports)
