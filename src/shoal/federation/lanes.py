"""Federations on a JAX-native environment side by side: all seeds and children at once, in one process, without sockets.

Every child of every seed is a lane of one compiled update, the one of `--runtime fused`. Exchanges go through the child's own
driver (`federation.driver`) and the parent's own state and rules; only the sockets are left out. All children are equally fast,
push in rotating order, and adopt the answer after their next update. The result therefore depends on the seeds alone, not on the
machine's load. The parent's weights are scored by greedy episodes on the same JAX-native environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import BadInput
from shoal.core.keys import ACTING, INIT, LEARNING, key_data, keys_in_a_row
from shoal.core.program import Report
from shoal.envs.jax_envs import BatchedJax, actor_key
from shoal.experiment import resolve
from shoal.federation import state as states
from shoal.federation.courier import Exchanged, Update
from shoal.federation.driver import ExchangeDriver
from shoal.federation.rules.rule import Rule
from shoal.federation.settings import ExchangeConfig, seed_of
from shoal.federation.state import Arrival, frozen
from shoal.federation.vectors import StateVectors
from shoal.launch.compose import make_blueprint
from shoal.runtimes.fused import Loop, one_update


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

    def __init__(self, rule: Rule, first: np.ndarray, vectors: StateVectors, children: int, every: int) -> None:
        self.rule, self.state = rule, states.start(first)
        for number in range(children):
            self.state = states.joined(self.state, f"child-{number}")
        begun = Exchanged(0, self.state.weights)
        exchange = ExchangeConfig(every_updates=every)
        self.drivers = [
            ExchangeDriver(Direct(self, f"child-{number}"), vectors, exchange, begun)  # type: ignore[arg-type]
            for number in range(children)
        ]


class Lanes:
    """Federations of one environment, algorithm and number of children: one for each seed, all in the same compiled functions.

    `steps` are environment steps over all children of a seed, `episodes` the greedy episodes of each evaluation.

    Raises:
        BadInput: the environment is not written in JAX, or the algorithm normalises observations, which are not exchanged here.
    """

    def __init__(
        self, env: str, settings: Mapping[str, Any], *, steps: int, children: int, seeds: Sequence[int], episodes: int
    ) -> None:
        share = steps // children
        plan = resolve(env, {**settings, "runtime": "fused", "steps": share, "schedule_steps": share})
        blueprint = make_blueprint(plan, None, None)
        algorithm, pure = blueprint.algorithm, blueprint.pure_env
        assert pure is not None  # the runtime `fused` has refused any other environment
        batched, _ = pure
        self._children, self._seeds = children, tuple(seeds)
        self._updates, self._per_update = blueprint.updates, blueprint.steps_per_update

        init = jax.jit(lambda key: algorithm.init(jax.random.wrap_key_data(key)))  # compiled once, for all seeds
        firsts = [init(key_data(seed, INIT)) for seed in seeds]
        self._vectors = StateVectors(firsts[0])
        if self._vectors.observed:
            raise BadInput(
                f"{plan.settings.algo} normalises observations on {env}, which lanes do not exchange: set"
                " --algo.normalise-obs false"
            )
        self._first = np.stack([self._vectors.vector(first) for first in firsts])
        self._own = [seed_of(seed, f"child-{number}") for seed in seeds for number in range(children)]
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
            for seed, learner in zip(self._own, learners, strict=True)
        ]
        self._loops = jax.tree.map(lambda *leaves: jnp.stack(leaves), *loops)

        def update(loop: Loop, keys: Any, progress: Any) -> tuple[Loop, Any]:
            loop, _, _ = one_update(algorithm, batched, blueprint.unroll, None, loop, keys, progress)
            return loop, loop.learner.params

        def adopt(loop: Loop, params: Any) -> Loop:
            learner = algorithm.adopt(loop.learner, params)
            return loop._replace(learner=learner, actor=algorithm.actor_state(learner))

        env_again = plan.source.jax_env()
        assert env_again is not None
        judge, key = BatchedJax(env_again, episodes), actor_key(2**31 - 1, 0)
        limit = judge.env.max_steps or 1000

        def score(params: Any, learner: Any) -> Any:
            actor = algorithm.actor_state(algorithm.adopt(learner, params))

            def one(moving: Any, _: Any) -> Any:
                envs, carry, first, alive, total = moving
                none = jnp.zeros(episodes, jnp.float32)
                action, _, carry = algorithm.act(actor, envs.obs, carry, first, jax.random.key(0), none)
                envs, (_, reward, _, _) = judge.step(envs, action)
                return (envs, carry, jnp.zeros_like(first), alive & ~envs.ended, total + reward * alive), None

            ready = jnp.ones(episodes, bool)
            begun = (judge.init(key), algorithm.initial_carry(episodes), ready, ready, jnp.zeros(episodes))
            (_, _, _, _, total), _ = jax.lax.scan(one, begun, None, length=limit)
            return total.mean()

        self._step, self._adopt = jax.jit(jax.vmap(update)), jax.jit(jax.vmap(adopt))
        self._score = jax.jit(jax.vmap(score))

    def compare(self, rule: Rule, *, every: int, points: int) -> np.ndarray:
        """Scores of the parents' weights, [seeds, points]: greedy, at equal distances along the budget.

        `every`: updates of a child between two exchanges.
        """
        vectors, children = self._vectors, self._children
        homes = [Home(rule, first, vectors, children, every) for first in self._first]
        loops, scores = self._loops, []
        like = jax.tree.map(lambda leaf: leaf[::children], self._loops.learner)
        for update in range(self._updates):
            loops, params = self._step(loops, self._keys(update), self._progress(update))
            after = _rows(params)
            for at, home in enumerate(homes):
                for turn in range(children):
                    child = (turn + update) % children
                    lane = at * children + child
                    adopted = home.drivers[child](self._report(update, after[lane]))
                    if adopted is not None and adopted.weights is not None:
                        after[lane] = adopted.weights
            loops = self._adopt(loops, self._trees(after))
            if (update + 1) * points // self._updates > update * points // self._updates:
                weights = np.stack([home.state.weights for home in homes])
                scores.append(np.asarray(self._score(self._trees(weights), like)))
        return np.stack(scores, axis=1)

    def _keys(self, update: int) -> np.ndarray:
        keys = np.zeros((len(self._own), 3, 2), np.uint32)
        for at, seed in enumerate(self._own):
            for part, path in enumerate(((ACTING, 0), (LEARNING,))):
                keys[at, part] = keys_in_a_row(seed, *path, first=update, count=1)[0]
        return keys

    def _progress(self, update: int) -> np.ndarray:
        return np.full(len(self._own), update / self._updates, np.float32)

    def _report(self, update: int, vector: np.ndarray) -> Report:
        return Report(
            version=update + 1,
            env_steps=(update + 1) * self._per_update,
            began_at=0.0,
            ended_at=0.0,
            episodes=(),
            metrics={},
            state=SimpleNamespace(params=self._vectors.layout.tree(vector), obs=None),
        )

    def _trees(self, vectors: np.ndarray) -> Any:
        """Vectors [lanes, P] as trees of [lanes, ...], the inverse of `_rows`."""
        layout, leaves, at = self._vectors.layout, [], 0
        for shape in layout.shapes:
            size = int(np.prod(shape, dtype=np.int64))
            leaves.append(vectors[:, at : at + size].reshape(-1, *shape))
            at += size
        return jax.tree.unflatten(layout.treedef, leaves)


def _rows(params: Any) -> np.ndarray:
    """Trees of [lanes, ...] as vectors [lanes, P]."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
