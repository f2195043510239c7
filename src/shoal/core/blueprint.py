"""The blueprint that a topology wires: recipes and sizes, no live objects, so that any part can be built in another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.keys import INIT, key_data
from shoal.core.ports import Slot
from shoal.core.program import Context
from shoal.core.record import Record
from shoal.core.starts import Starts
from shoal.core.trajectory import EARNED, trajectory_record
from shoal.core.weights import Layout, layout_of


class EnvRows(Protocol):
    """Environments seen as rows of a slot (`envs.autoreset.Rows`)."""

    obs: np.ndarray
    first: np.ndarray

    def begin(self, slot: Slot, fresh: bool = False, starts: np.ndarray | None = None) -> None: ...
    def step(self, slot: Slot, t: int, action: np.ndarray) -> None: ...
    def snapshot(self) -> dict[str, np.ndarray]: ...
    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A run with one choice per axis, resolved."""

    algorithm: Algorithm
    make_rows: Callable[[int, Context], EnvRows]  # (actor, its context)
    actors: int
    envs: int  # per actor
    learners: int = 1
    unrolls: int = 0  # per learner and update; 0 means one from each actor
    seed: int
    updates: int  # the version at which the budget is spent
    start: int = 0  # the version to resume from
    spent: int = 0  # environment steps made up to `start`, possibly with another batch size
    horizon: int = 0  # environment steps over which schedules run; 0 is the budget
    ahead: int = 0  # environment steps that schedules count beside the run's own: others had made them when it began
    state: Mapping[str, np.ndarray] = field(default_factory=dict)  # saved learner leaves by name; the rest start fresh
    snapshots: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)  # by role, for exact resume
    pure_env: Any = None  # the environments as pure functions, for `fused`
    starts: tuple[Starts, ...] = ()  # samplers of each actor's initial states; () leaves them to the environments
    report_every: int = 0  # updates between two looks at the learner; 0 leaves it to the clock
    driven: bool = False  # a driver answers reports: no actor uses an update's weights before the reply

    def __getstate__(self) -> dict[str, Any]:
        """Drop caches, weights and snapshots: another process builds its own caches and only acts."""
        # Not from `__dict__`: another thread may be filling a cache there.
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"state": {}, "snapshots": {}}

    @property
    def unroll(self) -> int:
        return self.algorithm.experience.length

    @property
    def steps_per_update(self) -> int:
        return self.unroll * self.envs * self.batch * self.learners

    @property
    def budget(self) -> int:
        """Environment steps when all updates are made."""
        return self.spent + (self.updates - self.start) * self.steps_per_update

    def progress(self, version: int, steps: int = 0) -> float:
        """The share of the budget that is spent, by updates or by steps since the start, whichever is more.

        Steps can exceed what the updates account for, because some experience may be lost.
        """
        return float(self.progress_at(self.spent + max((version - self.start) * self.steps_per_update, steps)))

    def progress_at(self, made: Any) -> Any:
        """Progress of the schedules after these environment steps, a number or an array of them."""
        if self.horizon or self.ahead:
            return np.minimum((made + self.ahead) / (self.horizon or self.budget), 1.0)
        return made / max(1, self.budget)

    @property
    def batch(self) -> int:
        """Unrolls that one learner takes for an update."""
        return self.unrolls or self.actors

    @cached_property
    def layout(self) -> Layout:
        """Layout of the weights that are sent to actors."""
        return layout_of(self.actor_shapes)

    @cached_property
    def record(self) -> Record:
        """Record of one actor's unroll."""
        algorithm, spec = self.algorithm, self.algorithm.task.spec
        carry = jax.eval_shape(lambda: algorithm.initial_carry(self.envs))
        if self.earns:
            carry = {**carry, EARNED: np.zeros(self.envs, np.float32)}

        def extras(actor: Any) -> Any:
            obs = jnp.zeros((self.envs, *spec.obs.shape), spec.obs.dtype)
            first, explore = jnp.zeros(self.envs, bool), jnp.ones(self.envs)
            return algorithm.act(actor, obs, algorithm.initial_carry(self.envs), first, jax.random.key(0), explore)[1]

        return trajectory_record(spec, self.unroll, self.envs, jax.eval_shape(extras, self.actor_shapes), carry)

    @cached_property
    def earns(self) -> bool:
        """Whether actors send each environment's return so far, because the learner cannot track it by column."""
        return self.algorithm.task.mixed and self.state_shapes.reward is not None

    def _init(self) -> LearnerState:
        return self.algorithm.init(jax.random.wrap_key_data(jax.numpy.asarray(key_data(self.seed, INIT))))

    @cached_property
    def _fresh(self) -> Any:
        """`_init`, compiled; one trace gives both its shapes and its values."""
        return jax.jit(self._init)

    @cached_property
    def state_shapes(self) -> LearnerState:
        """The shapes of the learner's state, available long before the state itself."""
        return LearnerState(*self._fresh.eval_shape())

    @cached_property
    def actor_shapes(self) -> Any:
        """The shapes of the actor's state."""
        return jax.eval_shape(self.algorithm.actor_state, self.state_shapes)

    def initial_state(self) -> LearnerState:
        """The learner's state at `start`: fresh, with the leaves in `state` replacing the fresh ones."""
        return self._initial_state

    @cached_property
    def _initial_state(self) -> LearnerState:
        if not self.state:
            return LearnerState(*self._fresh())
        known = self.state

        def missing() -> dict[str, Any]:
            leaves = {_path(path): leaf for path, leaf in jax.tree.leaves_with_path(self._init())}
            return {name: leaf for name, leaf in leaves.items() if name not in known}

        # Initial weights that `state` replaces are not even compiled, which saves time and memory.
        return LearnerState(*restore_leaves(self.state_shapes, {**jax.device_get(jax.jit(missing)()), **known}))


def restore_leaves(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """`tree` with every leaf taken from `arrays` by name; `ValueError` when names or shapes do not fit."""
    leaves, treedef = jax.tree.flatten_with_path(tree)
    restored = []
    for path, leaf in leaves:
        name = _path(path)
        found = arrays.get(name)
        if found is None or found.shape != leaf.shape:
            raise ValueError(f"{name!r} should have shape {leaf.shape}, not {None if found is None else found.shape}")
        restored.append(jax.numpy.asarray(found, leaf.dtype))
    return jax.tree.unflatten(treedef, restored)


def fitting(saved: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`fresh`, with the arrays of `saved` whose name and shape fit: other settings may have other entries."""
    return {name: saved[name] if name in saved and saved[name].shape == a.shape else a for name, a in fresh.items()}


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf by its path, as a checkpoint stores it."""
    return {_path(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
