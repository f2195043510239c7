"""Rules of a federation side by side on a JAX-native environment: all seeds and children at once, in one process.

    python benchmarks/federation_lanes.py                                   # CartPole-v1, PPO, 30 seeds, two and three children
    python benchmarks/federation_lanes.py --seeds 2 --steps 8192            # does it run?

Every child of every seed is a lane of one compiled update, the one of `--runtime fused`. Exchanges go through the child's own
driver (`federation.driver`) and the parent's own state and rules; only the sockets are left out. All children are equally fast,
push after every update in rotating order, and adopt the answer after their next update. The result therefore depends on the seeds
alone, not on the machine's load. The parent's weights are scored by greedy episodes on the same JAX-native environment. A row's
budget is the number of environment steps of all its children together; `alone` is a run without a parent.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.config import build
from shoal.core.keys import ACTING, INIT, LEARNING, key_data, keys_in_a_row
from shoal.core.program import Report
from shoal.envs.jax_envs import BatchedJax, actor_key
from shoal.experiment import Plan, resolve
from shoal.federation import state as states
from shoal.federation.courier import Exchanged, Update
from shoal.federation.driver import ExchangeDriver
from shoal.federation.rules import RULES
from shoal.federation.settings import ExchangeConfig, seed_of
from shoal.federation.state import Arrival, frozen
from shoal.federation.vectors import StateVectors
from shoal.launch.compose import make_blueprint
from shoal.process.device import settle_process
from shoal.runtimes.fused import Loop, one_update
from shoal.studies.statistics import summarise

TWO = (
    "alpha_beta:alpha=0.5,beta=0.5",
    "alpha_beta:alpha=0.9,beta=0",
    "alpha_beta:alpha=0.9,beta=0.5",
    "alpha_beta:alpha=0.9,beta=0.9",
    "alpha_beta:alpha=0.5,beta=0.9",
    "fedavg",
    "staleness",
    "fedbuff",
    "diloco",
)
THREE = ("alpha_beta:alpha=0.5,beta=0.5", "fedavg", "clipped_mean", "trimmed_mean", "median")
ALONE = "alpha_beta:alpha=1,beta=1"  # with one child: a run without a parent, bit for bit


class Direct:
    """A link without sockets: gives a child's update to the parent at once and keeps the answer until the child takes it."""

    busy, connected, milliseconds = False, True, ()

    def __init__(self, home: Home, child: str) -> None:
        self._home, self._child, self._sequence = home, child, 0
        self._answer: Exchanged | None = None
        rule = home.rule
        welcome = SimpleNamespace(takes=rule.takes, beta=rule.pull, adopts=rule.adopts)
        self.courier = SimpleNamespace(welcome=welcome)

    def give(self, update: Update) -> None:
        self._sequence += 1
        vector = frozen(update.vector)
        arrival = Arrival(self._child, self._sequence, update.base, vector, update.steps, update.episodes)
        home = self._home
        # The clock stands still, so a round ends when every child has pushed.
        home.state, _ = states.apply(home.state, home.rule, arrival, 0.0)
        self._answer = Exchanged(home.state.version, home.state.weights, applied=True)

    def take(self, timeout: float) -> Exchanged | None:
        answer, self._answer = self._answer, None
        return answer


class Home:
    """The parent of one seed, and the drivers of its children."""

    def __init__(self, rule: Any, first: np.ndarray, vectors: StateVectors, children: int, every: int) -> None:
        self.rule, self.state = rule, states.start(first)
        for number in range(children):
            self.state = states.joined(self.state, f"child-{number}")
        begun = Exchanged(0, self.state.weights)
        exchange = ExchangeConfig(every_updates=every)
        self.drivers = [
            ExchangeDriver(Direct(self, f"child-{number}"), vectors, exchange, begun)  # type: ignore[arg-type]
            for number in range(children)
        ]


class Lanes(NamedTuple):
    """The compiled functions of a number of lanes, and what their updates need."""

    plan: Plan
    vectors: StateVectors
    first: np.ndarray  # [seeds, P] the parents' initial weights
    loops: Loop  # [seeds * children, ...]
    step: Any
    adopt: Any
    score: Any
    seeds: list[int]  # of each lane
    per_update: int
    updates: int  # of each child


def lanes(chosen: argparse.Namespace, children: int) -> Lanes:
    share = chosen.steps // children
    plan = resolve(
        chosen.env,
        {"algo": chosen.algo, "runtime": "fused", "envs": chosen.envs, "steps": share, "schedule_steps": share},
    )
    blueprint = make_blueprint(plan, None, None)
    algorithm, (batched, _) = blueprint.algorithm, blueprint.pure_env

    init = jax.jit(lambda key: algorithm.init(jax.random.wrap_key_data(key)))  # compiled once, for all seeds
    firsts = [init(key_data(seed, INIT)) for seed in chosen.numbers]
    vectors = StateVectors(firsts[0])
    if vectors.observed:
        sys.exit(f"{chosen.algo} normalises observations, which this comparison does not exchange")
    own = [seed_of(seed, f"child-{number}") for seed in chosen.numbers for number in range(children)]
    begin = jax.jit(batched.init)
    learners = [first for first in firsts for _ in range(children)]
    loops = [
        Loop(
            learner=learner,
            actor=algorithm.actor_state(learner),
            envs=begin(actor_key(seed, 0)),
            carry=algorithm.initial_carry(blueprint.envs),
            first=jnp.ones(blueprint.envs, bool),
            starts=(),
        )
        for seed, learner in zip(own, learners, strict=True)
    ]

    def update(loop: Loop, keys: Any, progress: Any) -> tuple[Loop, Any]:
        loop, _, _ = one_update(algorithm, batched, blueprint.unroll, None, loop, keys, progress)
        return loop, loop.learner.params

    def adopt(loop: Loop, params: Any) -> Loop:
        learner = algorithm.adopt(loop.learner, params)
        return loop._replace(learner=learner, actor=algorithm.actor_state(learner))

    judge, key = BatchedJax(plan.source.jax_env(), chosen.episodes), actor_key(2**31 - 1, 0)
    limit = judge.env.max_steps or 1000

    def score(params: Any, learner: Any) -> Any:
        actor = algorithm.actor_state(algorithm.adopt(learner, params))

        def one(moving: Any, _: Any) -> Any:
            envs, carry, first, alive, total = moving
            none = jnp.zeros(chosen.episodes, jnp.float32)
            action, _, carry = algorithm.act(actor, envs.obs, carry, first, jax.random.key(0), none)
            envs, (_, reward, _, _) = judge.step(envs, action)
            return (envs, carry, jnp.zeros_like(first), alive & ~envs.ended, total + reward * alive), None

        ready = jnp.ones(chosen.episodes, bool)
        begun = (judge.init(key), algorithm.initial_carry(chosen.episodes), ready, ready, jnp.zeros(chosen.episodes))
        (_, _, _, _, total), _ = jax.lax.scan(one, begun, None, length=limit)
        return total.mean()

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *loops)
    return Lanes(
        plan=plan,
        vectors=vectors,
        first=np.stack([vectors.vector(first) for first in firsts]),
        loops=stacked,
        step=jax.jit(jax.vmap(update)),
        adopt=jax.jit(jax.vmap(adopt)),
        score=jax.jit(jax.vmap(score)),
        seeds=own,
        per_update=blueprint.steps_per_update,
        updates=blueprint.updates,
    )


def compare(chosen: argparse.Namespace, rule: str, children: int, made: Lanes) -> np.ndarray:
    """Scores of the parents' weights, [seeds, points]: greedy, at equal distances along the budget."""
    name, _, given = rule.partition(":")
    fields = {key: float(value) for key, value in (one.split("=") for one in given.split(",") if one)}
    layout, count = made.vectors.layout, len(chosen.numbers)
    homes = [
        Home(build(RULES[name], fields, "rule."), first, made.vectors, children, chosen.every) for first in made.first
    ]
    loops, scores = made.loops, []
    like = jax.tree.map(lambda leaf: leaf[::children], made.loops.learner)
    for update in range(made.updates):
        keys = np.zeros((len(made.seeds), 3, 2), np.uint32)
        for at, seed in enumerate(made.seeds):
            for part, path in enumerate(((ACTING, 0), (LEARNING,))):
                keys[at, part] = keys_in_a_row(seed, *path, first=update, count=1)[0]
        progress = np.full(len(made.seeds), update / made.updates, np.float32)
        loops, params = made.step(loops, keys, progress)
        vectors = rows(params)
        for at, home in enumerate(homes):
            for turn in range(children):
                child = (turn + update) % children
                lane = at * children + child
                report = Report(
                    version=update + 1,
                    env_steps=(update + 1) * made.per_update,
                    began_at=0.0,
                    ended_at=0.0,
                    episodes=(),
                    metrics={},
                    state=SimpleNamespace(params=layout.tree(vectors[lane]), obs=None),
                )
                reply = home.drivers[child](report)
                if reply is not None and reply.weights is not None:
                    vectors[lane] = reply.weights
        loops = made.adopt(loops, tree(layout, vectors))
        if (update + 1) * chosen.points // made.updates > update * chosen.points // made.updates:
            weights = np.stack([home.state.weights for home in homes])
            scores.append(np.asarray(made.score(tree(layout, weights), like)))
    found = np.stack(scores, axis=1)
    assert found.shape == (count, chosen.points)
    return found


def rows(params: Any) -> np.ndarray:
    """Trees of [lanes, ...] as vectors [lanes, P]."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def tree(layout: Any, vectors: np.ndarray) -> Any:
    """The inverse of `rows`."""
    leaves, at = [], 0
    for shape in layout.shapes:
        size = int(np.prod(shape, dtype=np.int64))
        leaves.append(vectors[:, at : at + size].reshape(-1, *shape))
        at += size
    return jax.tree.unflatten(layout.treedef, leaves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--envs", type=int, default=32, help="environments of a child")
    parser.add_argument("--steps", type=int, default=98_304, help="environment steps over all children of a seed")
    parser.add_argument("--every", type=int, default=1, help="updates of a child between two exchanges")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--from-seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=50, help="greedy episodes of each evaluation")
    parser.add_argument("--points", type=int, default=8, help="evaluations along the budget")
    parser.add_argument("--rules", default="", help="instead of all; separated by semicolons")
    parser.add_argument("--children", type=int, default=0, help="instead of two and three")
    chosen = parser.parse_args()
    chosen.numbers = range(chosen.from_seed, chosen.from_seed + chosen.seeds)
    settle_process()
    given = tuple(rule for rule in chosen.rules.split(";") if rule)
    sizes = {chosen.children: given or TWO} if chosen.children else {1: (ALONE,), 2: given or TWO, 3: THREE}
    print(
        f"{chosen.env}, {chosen.algo}, {chosen.envs} environments a child, {chosen.steps:,} steps over all children,"
        f" an exchange every {chosen.every} updates; seeds {chosen.numbers.start} to {chosen.numbers.stop - 1}\n"
    )
    print("| children | rule | along the budget | standard error | at the end | standard error | worst at the end |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for children, rules in sizes.items():
        made = lanes(chosen, children)
        for rule in rules:
            began = time.monotonic()
            found = compare(chosen, rule, children, made)
            along, end = summarise(found.mean(axis=1).tolist()), summarise(found[:, -1].tolist())
            errors = [one.sd / np.sqrt(one.n) for one in (along, end)]
            name = "alone" if children == 1 and rule == ALONE else rule
            print(
                f"| {children} | {name} | {along.mean:.1f} | {errors[0]:.1f} | {end.mean:.1f} | {errors[1]:.1f} |"
                f" {found[:, -1].min():.1f} |",
                flush=True,
            )
            path = " ".join(f"{value:.0f}" for value in found.mean(axis=0))
            print(
                f"{children} {name}: {path}; {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    main()
