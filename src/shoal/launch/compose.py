"""From a plan to a blueprint: the algorithm, the environments, and the state to resume from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState, Task
from shoal.core.blueprint import Blueprint, EnvRows
from shoal.core.errors import BadInput
from shoal.core.keys import ENVS, key_data, resumed_at, successor_of
from shoal.core.program import Context, Fault
from shoal.core.weights import leaf_names
from shoal.envs.autoreset import Rows, called
from shoal.envs.jax_envs import BatchedJax, actor_key
from shoal.envs.source import Source
from shoal.experiment import Plan
from shoal.launch.resuming import resumed_parts, resumed_state, with_replay
from shoal.learning.replay_update import check_memory, replay_of
from shoal.process.device import available_memory
from shoal.run.checkpoints import Loaded


def make_algorithm(plan: Plan) -> Algorithm:
    net = plan.net_class(plan.net, plan.spec)
    # Ask the configured topology, not its class: its needs may depend on its settings.
    topology = plan.topology_class(plan.topology)
    envs = plan.envs * topology.unrolls(plan.actors, plan.settings.learners)
    workers = plan.actors if topology.each_learns else 1
    task = Task(
        spec=plan.spec, envs=envs, fresh=plan.source.fresh, apart=topology.apart, workers=workers, mixed=topology.mixed
    )
    algorithm: Algorithm = plan.algo_class(plan.algo, task, net)
    return algorithm


def initial_state(plan: Plan) -> LearnerState:
    """The learner's initial state in a new run of this plan."""
    return make_blueprint(plan, None, None).initial_state()


def state_shapes(plan: Plan) -> LearnerState:
    """The shapes of the learner's state, without computing it."""
    return make_blueprint(plan, None, None).state_shapes


def make_rows(source: Source, envs: int, seed: int, start: int, actor: int, context: Context) -> EnvRows:
    """An actor's environments. In every process, a role builds these first."""

    def on_fault(kind: str, detail: str) -> None:
        context.fault(Fault(role=context.name, kind=kind, detail=detail))

    with called(context.env):
        batch = source.batch(envs, env_seed(seed, start, context.deaths), actor)
    return Rows(batch, on_fault, context.env)


def env_seed(seed: int, start: int, deaths: int = 0) -> int:
    """The seed of an actor's environments.

    In a resumed run and in a successor it is another one than before: the same episodes again would teach nothing, and one that
    ended an actor would end its successors. Environments that are restored keep the seed of their snapshot.
    """
    again = (*resumed_at(start), *successor_of(deaths))
    return int(key_data(seed, ENVS, *again)[0]) if again else seed


def make_blueprint(
    plan: Plan,
    loaded: Loaded | None,
    weights: Mapping[str, np.ndarray] | None,
    say: Callable[[str], None] = lambda message: None,
    *,
    driven: bool = False,
    ahead: float = 0.0,
) -> Blueprint:
    """The blueprint of a run. `loaded` is a checkpoint to resume; `weights` are leaves of another run's state to begin with.

    A run continues from the environment steps already made, even if an update had another size. `say` reports what starts over.
    `ahead` is the share of the schedules that others had made when the run began.
    """
    settings, algorithm = plan.settings, make_algorithm(plan)
    steps = algorithm.experience.length * algorithm.task.envs * settings.learners
    assert settings.steps is not None
    start = int(loaded.meta["version"]) if loaded else 0
    spent = int(loaded.meta["env_steps"]) if loaded else 0
    pure = plan.source.jax_env() if plan.runtime_class.needs_pure_env else None
    blueprint = Blueprint(
        algorithm=algorithm,
        make_rows=partial(make_rows, plan.source, plan.envs, settings.seed, start),
        actors=plan.actors,
        envs=plan.envs,
        learners=settings.learners,
        unrolls=algorithm.task.envs // plan.envs,
        seed=settings.seed,
        updates=start + -(-max(0, settings.steps - spent) // steps),
        start=start,
        spent=spent,
        horizon=settings.schedule_steps or 0,
        ahead=round(ahead * (settings.schedule_steps or settings.steps)),
        state=resumed_state(plan, algorithm, loaded, say) if loaded else {},
        snapshots=resumed_parts(plan, loaded, say) if loaded else {},
        starts=plan.source.starts(algorithm, plan.actors),
        report_every=settings.report_every,
        driven=driven,
        pure_env=None if pure is None else (BatchedJax(pure, plan.envs), actor_key(env_seed(settings.seed, start), 0)),
    )
    if loaded is not None:
        blueprint = with_replay(blueprint, loaded, say)
    if algorithm.replays:
        check_memory(blueprint, available_memory())
        replay = replay_of(blueprint)
        for name, rows in (("warmup", replay.warmup), ("batch-size", replay.batch)):
            seen = rows * replay.sequence  # steps
            if loaded is None and seen > settings.steps:
                raise BadInput(f"--algo.{name} is {seen}: no gradient would be made within --steps {settings.steps}")
    if weights is not None:
        fresh = dict(zip(leaf_names(blueprint.state_shapes), jax.tree.leaves(blueprint.state_shapes), strict=True))
        kept = {n: a for n, a in weights.items() if n.startswith(("params/", "obs/", "extra/", "moments/"))}
        strange = [n for n, a in kept.items() if n not in fresh or fresh[n].shape != a.shape]
        if strange or not kept:
            raise BadInput(
                f"--from: its weights do not fit this run's net or spaces ({', '.join(strange[:2]) or 'none'})"
            )
        trained = {"step": weights["step"]} if "step" in weights else {}  # then it acts by its policy from the start
        blueprint = replace(blueprint, state={**kept, **trained})
    return blueprint
