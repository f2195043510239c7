"""`seed`: actors only step environments; the policy acts for all of them in batches, beside the learner.

    actor 0 ─ observations ─┐                ┌─ unrolls ─┐
    actor 1 ─ observations ─┼─> inference ───┤           ├─> learner
    ...     <─── actions ───┘                └─ weights <┘

Weights are never sent to actors. The inference role keeps unrolls and the policy's recurrent state: restarting an actor loses
only the rows of one unroll. Weights may change inside an unroll, so each step carries its version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shoal.acting.inference import SERVED
from shoal.core.blueprint import Blueprint
from shoal.core.config import NonNegative, NonNegativeFloat
from shoal.core.errors import BadInput
from shoal.core.program import BoardSpec, CallSpec, PortSpec, Program, RoleSpec, StreamSpec
from shoal.roles.learner import Learner
from shoal.roles.seed import EnvActor, Inference, InferredUnrolls, answer_record, question_record
from shoal.topologies.topology import AS_TUNED


@dataclass(frozen=True, kw_only=True)
class SeedConfig:
    """Central inference."""

    inference_batch: NonNegative = 0
    """environments per call of the policy, at most; 0 is all of them"""
    inference_wait: NonNegativeFloat = 0.005
    """seconds to wait, at most, while fewer than half of the actors have asked; less if calls are quick"""


class SeedTopology:
    Config = SeedConfig
    about = "actors only step environments; one inference role acts for all of them in batches"
    apart = True
    mixed = False
    many_learners = False
    each_learns = False
    acting = 0
    if_parallel: tuple[str, ...] = ()
    usual = AS_TUNED

    def __init__(self, config: SeedConfig) -> None:
        self.config = config

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        return True

    def unrolls(self, actors: int, learners: int) -> int:
        """One unroll from each actor."""
        return actors

    def program(self, blueprint: Blueprint) -> Program:
        if blueprint.algorithm.experience.fresh:
            raise BadInput("topology 'seed' has actors without a policy, which cannot choose where episodes begin")
        actors = tuple(f"actor-{i}" for i in range(blueprint.actors))
        inference = partial(Inference, blueprint, self.config.inference_batch, self.config.inference_wait)
        roles = [
            RoleSpec(name="learner", build=partial(Learner, blueprint, None, InferredUnrolls), main=True),
            RoleSpec(name="inference", build=inference, kind="inference"),
        ]
        roles += [
            RoleSpec(name=name, build=partial(EnvActor, blueprint, i), steps_env=True, core=i)
            for i, name in enumerate(actors)
        ]
        ports: dict[str, PortSpec] = {
            "inference": CallSpec(
                clients=actors,
                servers=("inference",),
                question=question_record(blueprint),
                answer=answer_record(blueprint),
            ),
            # One lane per actor, all filled by the inference role: one slot is learnt from while the other is filled.
            "unrolls": StreamSpec(
                producers=("inference",) * blueprint.actors, consumer="learner", depth=2, record=blueprint.record
            ),
            "weights": BoardSpec(writer="learner", readers=("inference",), size=blueprint.layout.size, history=2),
            "news": StreamSpec(producers=("inference",), consumer="learner", depth=2, record=SERVED.record),
        }
        return Program(roles=tuple(roles), ports=ports)
