"""`ga3c`: agents, predictors and trainers around two queues; their numbers adjust themselves.

    agent 0 ─┐               ┌─ predictor 0
    agent 1 ─┼─ questions ───┼─ predictor 1   (batches of open questions)
    ...      │ <── actions ──┘ ...
             └─ unrolls ─────┬─ trainer 0 ─┐
                             └─ trainer 1 ─┴─ gradients ─> learner ─ weights ─> predictors, trainers

Agents have no weights; predictors and trainers keep no state, so any of them can die and be replaced. The learner applies
gradients one after another in order of arrival. Roles that the adjustment may need are started and wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from shoal.acting.inference import SERVED, answer_record, question_record
from shoal.core.blueprint import Blueprint
from shoal.core.config import NonNegative, NonNegativeFloat, Positive, PositiveFloat
from shoal.core.errors import BadInput
from shoal.core.program import BoardSpec, CallSpec, PortSpec, Program, RoleSpec, StreamSpec
from shoal.roles.ga3c import Agent, Applier, Ga3cSetup, GradientTrainer, Predictor
from shoal.roles.hill_climb import Numbers


@dataclass(frozen=True, kw_only=True)
class Ga3cConfig:
    """Agents (`--actors`), predictors and trainers."""

    predictors: Positive = 2
    """roles that choose actions, at the start"""
    trainers: Positive = 2
    """roles that compute gradients, at the start"""
    prediction_batch: Positive = 128
    """environments per call of the policy, at most; 1 predicts each by itself"""
    prediction_wait: NonNegativeFloat = 0.005
    """seconds to wait, at most, while fewer than half of the agents have asked; less if calls are quick"""
    batch_unrolls: NonNegative = 0
    """unrolls that a trainer combines for one gradient; 0 is one per agent"""
    queue: Positive = 100
    """unrolls that may wait for a trainer, shared out among the agents"""
    reward_clip: NonNegativeFloat | None = None
    """rewards are clipped to plus or minus this before learning, 0 leaves them; by default 1 for images, else 0"""
    adjust: bool | None = None
    """climb to the numbers of trainers, predictors and agents that train fastest; by default if roles run at the same time"""
    adjust_after: PositiveFloat = 10.0
    """seconds before the first step of the adjustment"""
    adjust_every: PositiveFloat = 20.0
    """seconds for which each step is tried"""
    most: Positive = 3
    """largest number of predictors, and of trainers, that the adjustment may use; it may use all agents"""


class Ga3cTopology:
    Config = Ga3cConfig
    about = "agents ask predictors and feed trainers through queues; their numbers adjust themselves (GA3C)"
    apart = True
    mixed = False  # algorithms that follow environments from batch to batch are refused
    many_learners = False
    each_learns = False
    acting = 0
    # Settings of the published system that differ from the tuned ones, which are for other topologies.
    if_parallel: tuple[str, ...] = ("adjust",)
    usual: Mapping[str, Any] = MappingProxyType(
        {"unroll": 5, "batch_size": 0, "normalise_reward": False, "log_epsilon": 1e-6}
    )

    def __init__(self, config: Ga3cConfig) -> None:
        self.config = config

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        return True

    def unrolls(self, actors: int, learners: int) -> int:
        return self.config.batch_unrolls or actors

    def program(self, blueprint: Blueprint) -> Program:
        _check(blueprint)
        config = self.config
        start = Numbers(config.trainers, config.predictors, blueprint.actors)
        most = start
        if config.adjust:
            most = Numbers(max(config.most, start.trainers), max(config.most, start.predictors), blueprint.actors)
        clip = config.reward_clip
        if clip is None:
            clip = 1.0 if blueprint.algorithm.task.spec.obs.is_image else 0.0
        setup = Ga3cSetup(
            blueprint=blueprint,
            start=start,
            most=most,
            rows=config.prediction_batch,
            wait=config.prediction_wait,
            reward_clip=clip,
            adjust_after=config.adjust_after if config.adjust else 0.0,
            adjust_every=config.adjust_every,
        )
        agents = tuple(f"actor-{i}" for i in range(blueprint.actors))
        predictors = tuple(f"predictor-{i}" for i in range(most.predictors))
        trainers = tuple(f"trainer-{i}" for i in range(most.trainers))
        roles = [RoleSpec(name="learner", build=partial(Applier, setup), main=True)]
        roles += [
            RoleSpec(name=name, build=partial(Predictor, setup, i), kind="predictor")
            for i, name in enumerate(predictors)
        ]
        roles += [
            RoleSpec(name=name, build=partial(Agent, setup, i), steps_env=True, core=i) for i, name in enumerate(agents)
        ]
        roles += [
            RoleSpec(name=name, build=partial(GradientTrainer, setup, i), kind="trainer")
            for i, name in enumerate(trainers)
        ]
        return Program(roles=tuple(roles), ports=_ports(setup, config.queue, agents, predictors, trainers))


def _ports(
    setup: Ga3cSetup, queue: int, agents: tuple[str, ...], predictors: tuple[str, ...], trainers: tuple[str, ...]
) -> dict[str, PortSpec]:
    blueprint, learner = setup.blueprint, "learner"
    return {
        "predictions": CallSpec(
            clients=agents, servers=predictors, question=question_record(blueprint), answer=answer_record(blueprint)
        ),
        "unrolls": StreamSpec(
            producers=agents,
            consumer=trainers[0],
            others=trainers[1:] or trainers,  # taken by copy even with one trainer, whose batch outgrows a lane
            depth=max(2, -(-queue // len(agents))),
            record=blueprint.record,
        ),
        "gradients": StreamSpec(producers=trainers, consumer=learner, depth=2, record=setup.gradients.record),
        "weights": BoardSpec(writer=learner, readers=predictors, size=blueprint.layout.size, history=3),
        "params": BoardSpec(writer=learner, readers=trainers, size=setup.gradients.layout.size, history=3),
        "control": BoardSpec(writer=learner, readers=(*agents, *predictors, *trainers), size=3, history=3),
        "episodes": StreamSpec(producers=agents, consumer=learner, depth=2, record=setup.episodes.record),
        "served": StreamSpec(producers=predictors, consumer=learner, depth=2, record=SERVED.record),
    }


def _check(blueprint: Blueprint) -> None:
    """Refuse algorithms that need a replay, fresh episodes, several gradients per batch, or normalised rewards."""
    algorithm = blueprint.algorithm
    if algorithm.replays:
        raise BadInput("topology 'ga3c' learns from each unroll once: it takes no replay; a2c and reinforce fit")
    if algorithm.experience.fresh:
        raise BadInput("topology 'ga3c' has agents without a policy, which cannot choose where episodes begin")
    cut = algorithm.minibatches
    if (cut.epochs, cut.parts) != (1, 1):
        raise BadInput(
            f"topology 'ga3c' computes one gradient per batch, and the algorithm asks for {cut.epochs} epochs of {cut.parts}"
            " minibatches: a2c and reinforce fit"
        )
    if blueprint.initial_state().reward is not None:
        raise BadInput(
            "--algo.normalise-reward does not fit topology 'ga3c', whose unrolls have no order: --topology.reward-clip"
            " or --algo.reward-scale keep rewards small"
        )
