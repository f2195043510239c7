"""`actor_learner`: actors decoupled from learners. Actors push unrolls and wait for learning only if a queue is full.

    actor 0 ─┐                      ┌─> learner 0 ─ weights ─> all actors
    actor 1 ─┼─ queue, stack        │      │
    actor 2 ─┤  or window           ┤    group: gradients averaged, every decision shared
    ...     ─┘                      └─> learner 1

Timing decides which weights act on which unroll, so acting weights lag behind the learner's. The lag is measured, limited
(`max_lag`) and corrected (V-trace, or PPO's ratio).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Literal

from shoal.core.blueprint import Blueprint
from shoal.core.config import NonNegative, Positive, PositiveFloat
from shoal.core.errors import BadInput
from shoal.core.program import BoardSpec, GroupSpec, PortSpec, Program, RoleSpec, StreamSpec
from shoal.core.weights import layout_of
from shoal.learning.intake import BatchSource
from shoal.learning.joint_update import JointUpdate, Together
from shoal.roles.async_actor_learner import ActorPolicy, AnyUnrolls, AsyncActor, news_format
from shoal.roles.joint_learner import COUNTS, LAGS, TOTALS_SIZE, JointLearner, state_size
from shoal.roles.learner import Learner
from shoal.topologies.topology import AS_TUNED

METRICS = 64  # at most this many metrics are exchanged between learners per update
MAXIMA = 4  # at most this many of them are maxima, for which every learner's number is sent


@dataclass(frozen=True, kw_only=True)
class ActorLearnerConfig:
    """Actors decoupled from learners."""

    stream: Literal["queue", "stack", "window"] = "queue"
    """order of taking an actor's unrolls: oldest first, newest first, or only the newest, which may be replaced unread"""
    depth: Positive = 1
    """unrolls that may wait in an actor's queue or stack, besides those being learnt from"""
    full: Literal["blocks", "refuses"] = "blocks"
    """a full queue or stack makes its actor wait, or refuses the unroll, which is then lost and counted"""
    batch_unrolls: NonNegative = 0
    """unrolls of each learner's update, from any actors that have some; 0 shares out one from each actor"""
    max_lag: NonNegative | None = None
    """drop and count unrolls whose weights are more versions old than this; 0: lockstep, version n acts on unroll n"""
    selection: Literal["assigned", "random"] = "assigned"
    """each learner takes from its own range of actors, or any learner from any actor"""
    reread: bool = False
    """a learner may read a window again that holds nothing new"""
    workflow: Literal["async", "joint"] = "async"
    """joint: an actor waits until its unroll has been learnt from, so that a step is L batches, a barrier and new weights"""
    average_every: NonNegative = 0
    """with several learners: updates between two averages of their weights, instead of averaging gradients; 0 averages gradients"""
    learning_rate_scale: PositiveFloat = 1.0
    """with several learners: factor of their common step, since their joint batch is larger"""
    actor_unrolls: NonNegative = 0
    """an actor ends after this many unrolls; a learner whose actors have ended helps the others; 0 is never"""
    delay: NonNegative = 0
    """act with weights this many versions older than the newest: an artificial lag, for experiments"""


class ActorLearnerTopology:
    Config = ActorLearnerConfig
    about = "actors decoupled from 1..L learners: queues or windows, all-reduced gradients; V-trace corrects the lag"
    many_learners = True
    each_learns = False
    acting = 0
    if_parallel: tuple[str, ...] = ()
    usual = AS_TUNED

    def __init__(self, config: ActorLearnerConfig) -> None:
        self.config = config
        if config.stream == "window" and config.depth != ActorLearnerConfig.depth:
            raise BadInput(
                f"--topology.depth is {config.depth}: a window holds one unroll; queue and stack have a depth"
            )

    @property
    def apart(self) -> bool:
        """True unless in lockstep, where the learner holds the weights that acted."""
        return self.config.max_lag != 0

    @property
    def mixed(self) -> bool:
        """True unless in lockstep, where a batch is one unroll from each actor."""
        return self.config.max_lag != 0

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        return True

    def unrolls(self, actors: int, learners: int) -> int:
        config = self.config
        if learners > actors:
            raise BadInput(f"--learners is {learners}: there must be an actor for each, and --actors is {actors}")
        batch = config.batch_unrolls or actors // learners
        if config.max_lag == 0 and batch * learners != actors:
            raise BadInput(
                f"--topology.max-lag is 0: all {actors} actors wait for each update, which takes {learners} x {batch} unrolls;"
                " --actors must be a multiple of --learners, and --topology.batch-unrolls 0"
            )
        return batch

    def program(self, blueprint: Blueprint) -> Program:
        config, count = self.config, blueprint.learners
        self._check(blueprint)
        lockstep, window = config.max_lag == 0, config.stream == "window"
        actors = tuple(f"actor-{i}" for i in range(blueprint.actors))
        learners = tuple(f"learner-{i}" for i in range(count))
        ranges = assigned(blueprint.actors, count, spread=not window)
        ends = config.actor_unrolls > 0
        one_stream = count == 1 or config.selection == "random" or ends or config.stream != "queue"
        shared = config.stream != "queue" or ends or (count > 1 and one_stream)
        lossy = window or config.full == "refuses"

        def stream(of: range, consumers: tuple[str, ...]) -> StreamSpec:
            # Unrolls that are learnt from in place need slots of their own; in a joint step no others wait beside them.
            held = 0 if shared else -(-blueprint.batch // len(of))
            return StreamSpec(
                producers=tuple(actors[i] for i in of),
                consumer=consumers[0],
                others=consumers[1:],
                depth=max(1, held) if config.workflow == "joint" else config.depth + held,
                record=blueprint.record,
                order=config.stream,
                ends=ends,
            )

        ports: dict[str, PortSpec] = {
            "weights": BoardSpec(
                writer=learners[0],
                readers=actors,
                size=blueprint.layout.size,
                history=2 if not config.delay else config.delay + 4,
            ),
            "news": StreamSpec(producers=actors, consumer=learners[0], depth=8, record=news_format(blueprint).record),
        }
        roles: list[RoleSpec] = []
        every = range(blueprint.actors)
        for i, own in enumerate(ranges):
            port = "unrolls" if one_stream else f"unrolls-{i}"
            first = 0 if one_stream else own.start
            if one_stream:
                ports[port] = stream(every, learners)
            else:
                ports[port] = stream(own, (learners[i],))
            source = BatchSource(
                port=port,
                lanes=tuple(every if config.selection == "random" else (a - first for a in own)),
                shared=shared,
                window=window,
                shuffled=config.selection == "random" or window,
                max_lag=config.max_lag,
                reread=config.reread,
                ends=ends,
                lossy=lossy,
            )
            roles.append(self._learner(blueprint, i, source, lockstep, learners[i]))
            for a in own:
                policy = ActorPolicy(
                    port=port,
                    lane=a - first,
                    lockstep=lockstep,
                    delay=config.delay,
                    refuses=config.full == "refuses",
                    yields=lossy,
                    last=config.actor_unrolls,
                )
                roles.append(
                    RoleSpec(name=actors[a], build=partial(AsyncActor, blueprint, a, policy), steps_env=True, core=a)
                )
        if count > 1:
            together = self._together()
            size = max(JointUpdate.group_size(blueprint, together), METRICS + count * MAXIMA + len(COUNTS) + LAGS)
            ports["learners"] = GroupSpec(members=count, size=size, roles=learners)
            ports["states"] = BoardSpec(writer=learners[0], readers=learners, size=state_size(blueprint), history=2)
            ports["totals"] = BoardSpec(writer=learners[0], readers=learners, size=TOTALS_SIZE, history=2)
            if blueprint.driven:  # weights as reported, and as handed in; statistics of others' observations
                shapes = blueprint.state_shapes
                size = 2 * layout_of(shapes.params).size + layout_of(shapes.obs).size
                ports["handed"] = BoardSpec(writer=learners[0], readers=learners, size=size, history=2)
        return Program(roles=tuple(roles), ports=ports)

    def _learner(self, blueprint: Blueprint, index: int, source: BatchSource, lockstep: bool, name: str) -> RoleSpec:
        if blueprint.learners == 1:
            alone = partial(Learner, blueprint, same_version if lockstep else None, partial(AnyUnrolls, source))
            return RoleSpec(name=name, build=alone, main=True)
        build = partial(JointLearner, blueprint, index, source, self._together(), lockstep)
        return RoleSpec(name=name, build=build, main=index == 0, kind="learner", learns=True)

    def _together(self) -> Together:
        return Together(self.config.average_every, self.config.learning_rate_scale)

    def _check(self, blueprint: Blueprint) -> None:
        config = self.config
        if blueprint.learners > 1 and blueprint.algorithm.replays:
            raise BadInput(
                f"--learners is {blueprint.learners}: an algorithm that learns from a replay has one learner here"
            )
        if blueprint.learners == 1:
            if config.average_every:
                raise BadInput(f"--topology.average-every is {config.average_every}: it needs at least --learners 2")
            if config.learning_rate_scale != 1.0:
                raise BadInput(
                    f"--topology.learning-rate-scale is {config.learning_rate_scale}: it needs at least --learners 2"
                )
        if config.average_every and config.learning_rate_scale != 1.0:
            raise BadInput(
                f"--topology.learning-rate-scale is {config.learning_rate_scale}: it is for common gradients, and"
                f" --topology.average-every {config.average_every} averages weights"
            )
        if config.max_lag is not None and config.delay > config.max_lag:
            raise BadInput(
                f"--topology.max-lag is {config.max_lag}: every unroll would be dropped, since --topology.delay is {config.delay}"
            )
        if config.max_lag == 0 and (config.stream != "queue" or config.full == "refuses"):
            raise BadInput("--topology.max-lag is 0: no unroll may be lost, so the stream must be a queue that blocks")
        if config.stream == "window" and config.full == "refuses":
            raise BadInput(
                "--topology.full is 'refuses': a window is never full, its newest unroll replaces the older one"
            )
        if config.reread and (config.stream != "window" or config.max_lag is not None or config.actor_unrolls):
            raise BadInput(
                "--topology.reread is for --topology.stream window without --topology.max-lag and --topology.actor-unrolls:"
                " a window that is read again never ends"
            )
        self._check_lockstep(blueprint)
        if 0 < config.actor_unrolls * blueprint.actors < blueprint.batch * blueprint.learners:
            raise BadInput(
                f"--topology.actor-unrolls is {config.actor_unrolls}: {blueprint.actors} actors end before there are the"
                f" {blueprint.batch * blueprint.learners} unrolls of one update"
            )

    def _check_lockstep(self, blueprint: Blueprint) -> None:
        """Check that in lockstep no unroll is copied or lost, and that learners do not differ."""
        config, many = self.config, blueprint.learners > 1
        copied = config.stream != "queue" or bool(config.actor_unrolls) or (many and config.selection == "random")
        if config.workflow == "joint" and (copied or config.full == "refuses"):
            raise BadInput(
                "--topology.workflow is 'joint': an actor waits until its unroll is learnt from, which needs --topology.stream"
                " queue that blocks, --topology.selection assigned and no --topology.actor-unrolls"
            )
        if config.max_lag == 0 and many and copied:
            raise BadInput(
                "--topology.max-lag is 0: with several learners it needs --topology.selection assigned and no"
                " --topology.actor-unrolls, or an unroll that a dying learner held would be waited for"
            )
        if config.max_lag == 0 and many and config.average_every > 1:
            raise BadInput(
                f"--topology.max-lag is 0: between averages (--topology.average-every {config.average_every}) only learner 0 has"
                " the weights that acted"
            )


def same_version(version: int) -> int:
    """The schedule of lockstep: the newest weights act."""
    return version


def assigned(actors: int, learners: int, spread: bool) -> list[range]:
    """Each learner's range of actors, of equal size; the remainder is spread over the first learners, or goes to the first."""
    each, rest = divmod(actors, learners)
    sizes = [each + ((i < rest) if spread else rest * (i == 0)) for i in range(learners)]
    ends = list(accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
