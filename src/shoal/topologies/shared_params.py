"""`shared_params`: k workers act and learn by themselves, on one set of weights.

    worker 0 ── pull ──┐            ┌── push ── worker 0            hogwild   adds without a lock
    worker 1 ── pull ──┼── weights ─┼── push ── worker 1            lock      one at a time
    ...                ┘            └                               sharded   gradients to servers, one per slice
         └── news ── monitor ── reports                             gossip    one copy per worker, averaged in pairs

With A2C this is A3C. An update is one worker's unroll, and the roster shares them out until the budget is spent.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np

from shoal.acting.random_actions import random_action_rows
from shoal.core.blueprint import Blueprint
from shoal.core.errors import BadInput
from shoal.core.keys import key_data
from shoal.core.program import PoolSpec, PortSpec, Program, RoleSpec, RosterSpec, StreamSpec, TableSpec
from shoal.core.telemetry import NewsFormat, metric_name
from shoal.core.trajectory import as_trajectory
from shoal.learning.compiled_update import compiled_update
from shoal.learning.replay_update import REPLAY, blank_minibatches, replay_of, row_record, shared_out
from shoal.learning.shared_layout import SharedLayout
from shoal.learning.soundness import SOUND
from shoal.learning.weight_exchange import gradient_record
from shoal.roles.shards import Shard
from shoal.roles.shared_params import OWN_METRICS, Monitor, SharedParamsConfig, Worker
from shoal.topologies.topology import AS_TUNED

REPLAY_METRICS = ("replay/rows", "replay/gradients")
NEWS = 8  # unrolls that a worker may be ahead of the monitor


class SharedParamsTopology:
    Config = SharedParamsConfig
    about = "k workers act and learn by themselves on shared weights: hogwild, lock, sharded servers, gossip (A3C)"
    apart = False
    mixed = False
    many_learners = False
    each_learns = True
    acting = 0
    if_parallel: tuple[str, ...] = ()
    usual = AS_TUNED

    def __init__(self, config: SharedParamsConfig) -> None:
        self.config = config
        if config.consistency == "sharded" and config.moments == "own":
            raise BadInput("--topology.moments is 'own': the servers of sharded hold the moments, which all share")
        for name in ("shards", "queue") if config.consistency != "sharded" else ():
            value, usual = getattr(config, name), getattr(SharedParamsConfig, name)
            if value != usual:
                raise BadInput(f"--topology.{name} is {value}: it goes with --topology.consistency sharded")
        if config.consistency == "gossip" and config.moments == "shared":
            raise BadInput("--topology.moments is 'shared': under gossip every worker has its own")
        if config.consistency == "sharded" and config.split:
            raise BadInput("--topology.split is true: it goes with hogwild, lock and gossip, not with sharded")
        if config.pull == "episode" and config.pull_every != 1:
            raise BadInput(
                f"--topology.pull-every is {config.pull_every}: --topology.pull episode pulls when an episode ends"
            )

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        return self.config.share_moments(blueprint)

    def unrolls(self, actors: int, learners: int) -> int:
        """One: every worker learns from its own unroll."""
        return 1

    def program(self, blueprint: Blueprint) -> Program:
        config = self.config
        layout = SharedLayout(blueprint.algorithm, config.share_moments(blueprint))
        workers = tuple(f"worker-{i}" for i in range(blueprint.actors))
        self._check(blueprint, layout)
        blueprint, notes = self._fitting(blueprint, layout)
        news = NewsFormat((*loss_names(blueprint), *OWN_METRICS), blueprint.unroll * blueprint.envs)
        ports: dict[str, PortSpec] = {
            "roster": RosterSpec(workers=workers, watcher="monitor", start=blueprint.start, end=blueprint.updates),
            "news": StreamSpec(producers=workers, consumer="monitor", depth=NEWS, record=news.record),
            "own": TableSpec(workers=workers, size=layout.own_size, consistency="lock", rows=blueprint.actors),
        }
        if layout.statistics_size:
            ports["statistics"] = TableSpec(workers=workers, size=layout.statistics_size, consistency="lock")
        if blueprint.algorithm.replays:
            # One ring per worker, where the monitor can save it, whether workers draw from all rings or only from their own.
            # Rounded up: all rings together must hold a warm-up of the whole capacity.
            slots = -(-replay_of(blueprint).capacity // blueprint.actors)
            if config.replay == "local":
                slots = shared_out(replay_of(blueprint), blueprint.actors).capacity
            ports["replay"] = PoolSpec(workers=blueprint.actors, slots=slots, record=row_record(blueprint))
        servers: tuple[str, ...] = ()
        if config.consistency == "sharded":
            servers = tuple(f"shard-{i}" for i in range(config.shards))
            size, width = layout.slice_size(config.shards), layout.shard_width(config.shards)
            ports["weights"] = TableSpec(workers=servers, size=width, consistency="lock", rows=config.shards)
            for i, server in enumerate(servers):
                ports[f"gradients-{i}"] = StreamSpec(
                    producers=workers,
                    consumer=server,
                    depth=config.queue,
                    record=gradient_record(size, max(1, len(blueprint.algorithm.groups))),
                )
        else:
            ports["weights"] = TableSpec(
                workers=workers,
                size=layout.width,
                consistency="hogwild" if config.consistency == "hogwild" else "lock",
                rows=blueprint.actors if config.consistency == "gossip" else 1,
            )
        if config.epsilon:
            action = blueprint.algorithm.task.spec.action
            rows = partial(
                random_action_rows, blueprint.make_rows, action, config.epsilon, blueprint.seed, blueprint.start
            )
            blueprint = replace(blueprint, make_rows=rows)
        roles = [RoleSpec(name="monitor", build=partial(Monitor, config, news, blueprint), main=True)]
        roles += [
            RoleSpec(name=name, build=partial(Worker, config, news, blueprint, i), steps_env=True, core=i)
            for i, name in enumerate(workers)
        ]
        roles += [
            RoleSpec(name=name, build=partial(Shard, blueprint, i), kind="shard") for i, name in enumerate(servers)
        ]
        return Program(roles=tuple(roles), ports=ports, notes=notes)

    def _fitting(self, blueprint: Blueprint, layout: SharedLayout) -> tuple[Blueprint, tuple[str, ...]]:
        """(`blueprint` without workers' parts of other sizes, which older versions may have saved, a note about it)."""
        rings = blueprint.actors if self.config.replay == "global" else 1
        fits = all(
            (name != f"worker-{i}" or arrays["own"].size == layout.own_size)
            and (name != f"{REPLAY}-{i}" or arrays["seen"].size == rings)
            for i in range(blueprint.actors)
            for name, arrays in blueprint.snapshots.items()
        )
        if fits:
            return blueprint, ()
        kept = {name: arrays for name, arrays in blueprint.snapshots.items() if name == REPLAY}
        note = "the checkpoint's workers have parts of another size: environments and running episodes begin again"
        return replace(blueprint, snapshots=kept), (note,)

    def _check(self, blueprint: Blueprint, layout: SharedLayout) -> None:
        config = self.config
        if config.moments == "shared" and config.consistency != "sharded" and not config.one_at_a_time(blueprint):
            raise BadInput(
                "--topology.moments is 'shared': a push of this algorithm is several gradients, whose changes of the moments"
                " do not add up; own, or --topology.consistency sharded (or one gradient per push: --topology.push-every 1"
                " with a replay, --algo.batch-size 0 for a2c)"
            )
        if config.moments == "shared" and config.consistency != "sharded" and not config.pulls_first(blueprint):
            raise BadInput(
                "--topology.moments is 'shared': changes of the moments add up only if each push follows a pull"
                " (--topology.pull unrolls, --topology.pull-every 1); own, or --topology.consistency sharded"
            )
        if config.consistency == "sharded" and config.shards > layout.size:
            raise BadInput(
                f"--topology.shards is {config.shards}: the net has only {layout.size} parameters to share out"
            )
        if config.replay == "global" and not blueprint.algorithm.replays:
            raise BadInput(
                "--topology.replay is 'global': only algorithms that learn from a replay have one, such as dqn"
            )
        if config.push_every is not None:
            if not blueprint.algorithm.replays:
                raise BadInput(
                    f"--topology.push-every is {config.push_every}: only algorithms that learn from a replay, such as dqn,"
                    " push several times per unroll"
                )
            if config.consistency not in ("hogwild", "lock"):
                what = {"gossip": "the whole update", "sharded": "one gradient"}[config.consistency]
                raise BadInput(
                    f"--topology.push-every is {config.push_every}: under {config.consistency} each push is {what}"
                )
            if blueprint.actors == 1:
                raise BadInput(
                    f"--topology.push-every is {config.push_every}: it takes at least --actors 2, since one pushes whole updates"
                )
        if not config.split:
            return
        if set(layout.shape.params) != {"policy", "value"}:
            raise BadInput(
                "--topology.split is true: the net must have a policy and a value function that share nothing"
                " (an actor-critic algorithm such as a2c, with --net.shared false)"
            )
        if blueprint.actors < 2:
            raise BadInput("--topology.split is true: it takes at least --actors 2, for the policy and for the value")


def loss_names(blueprint: Blueprint) -> tuple[str, ...]:
    """The metrics of an update, as they will be logged."""
    algorithm = blueprint.algorithm
    state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0)))
    if algorithm.replays:
        drawn = jax.tree.map(lambda x: x[0], blank_minibatches(blueprint, 1))
        names = jax.eval_shape(algorithm.gradients, state, drawn, jax.random.key(0))[1].metrics
        explored = jax.eval_shape(algorithm.actor_state, state).explore
        return (*map(metric_name, names), *(f"explore/{name}" for name in explored), *REPLAY_METRICS)
    acted = jax.eval_shape(algorithm.actor_state, state)
    slot = as_trajectory(blueprint.record.empty())
    names = compiled_update(algorithm).eval_shape(state, acted, [slot], key_data(0), np.float32(0))[2]
    return tuple(metric_name(name) for name in names if name != SOUND)
