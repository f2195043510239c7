"""Optimisation as a Markov decision process.

The state is a normalised point, knobs then conditions. The action is the next point's knobs, absolute; the conditions stay.
The reward is f(s) - f(s'). An episode terminates after T steps. There are two forms: pure functions for a traceable f, a
batch for any other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm
from shoal.core.errors import BadInput
from shoal.core.spec import EnvSpec, ObsSpec
from shoal.core.starts import Starts
from shoal.core.trajectory import Array
from shoal.envs.batch import EnvBatch, EvalEnv, Step, seed_of
from shoal.envs.jax_envs import JaxBatch, JaxEnv
from shoal.optimize.problem import Problem
from shoal.optimize.samplers import drivers_starts
from shoal.optimize.samplers.cube import Cube


class Place(NamedTuple):
    """The state of an episode."""

    point: Array  # [width]
    value: Array  # [] f at the point
    step: Array  # [] int32


@dataclass(frozen=True)
class TuningEnv:
    """The process for a traceable f, as a `JaxEnv`."""

    problem: Problem
    time_steps: int

    @property
    def spec(self) -> EnvSpec:
        return env_spec(self.problem)

    @property
    def max_steps(self) -> int | None:
        return None  # the end is part of the process: terminated, never truncated

    def reset(self, key: Array) -> tuple[Place, Array]:
        cube = cube_of(self.problem)
        return self.start_at(key, cube.points(jax.random.uniform(key, (1, cube.sides)))[0])

    def start_at(self, key: Array, start: Array) -> tuple[Place, Array]:
        value = self.problem.evaluate_jax(start[None])[0].astype(jnp.float32)
        return Place(start, value, jnp.zeros((), jnp.int32)), start

    def step(self, state: Place, action: Array, key: Array) -> tuple[Place, Array, Array, Array]:
        point = self.problem.from_action(state.point[None], action[None])[0]
        value = self.problem.evaluate_jax(point[None])[0].astype(jnp.float32)
        step = state.step + 1
        return Place(point, value, step), point, state.value - value, step >= self.time_steps


class TuningBatch:
    """The process for an f that is called from Python, as an `EnvBatch`. A failed evaluation drops its episode.

    An unroll of T steps evaluates f T + 1 times for each environment, even after failures: after a failure another episode
    begins at a point whose value is known.
    """

    def __init__(self, problem: Problem, time_steps: int, size: int, seed: int, actor: int) -> None:
        self.spec, self.size = env_spec(problem), size
        self.faults: list[tuple[str, str]] = []
        self._problem, self._time_steps = copy.copy(problem), time_steps  # with counts of its own
        self._rng = np.random.default_rng(seed_of(seed, actor))
        self._points = np.zeros((size, problem.width), np.float32)
        self._values = np.zeros(size)
        self._steps = np.zeros(size, np.int64)
        self._ended = np.zeros(size, np.bool_)
        self._lost = 0

    def reset(self) -> Array:
        return self.begin_at(self._random(self.size))

    def begin_at(self, starts: Array) -> Array:
        self._points = np.array(starts, np.float32)
        self._values = np.asarray(self._problem.evaluate(self._points), np.float64)
        self._steps[:], self._ended[:] = 0, False
        return self._points

    def step(self, action: Array) -> Step:
        begins = self._ended
        points = np.asarray(self._problem.from_action(self._points, np.asarray(action)), np.float32)
        if begins.any():
            points[begins] = self._random(int(begins.sum()))
        values = np.asarray(self._problem.evaluate(points), np.float64)
        lost = ~np.isfinite(values) | ~np.isfinite(self._values)
        if lost.any():
            self._tell(int((lost & ~begins).sum()))
        with np.errstate(invalid="ignore"):
            reward = np.where(begins | lost, 0.0, self._values - values).astype(np.float32)
        # The next episode begins where the failed one was going if f is known there, or else where it came from.
        back = lost & ~np.isfinite(values)
        points[back], values[back] = self._points[back], self._values[back]
        self._points, self._values = points, values
        self._steps = np.where(begins | lost, 0, self._steps + 1)
        self._ended = (self._steps >= self._time_steps) & ~lost
        none = np.zeros(self.size, np.bool_)
        return Step(self._points, reward, self._ended.copy(), none, lost & ~begins)

    def restart(self, index: int) -> Array:
        self._points[index] = self._random(1)[0]
        self._values[index] = self._problem.evaluate(self._points[index : index + 1])[0]
        self._steps[index], self._ended[index] = 0, False
        return self._points[index]

    def snapshot(self) -> dict[str, np.ndarray]:
        """The generator and the points; fresh unrolls begin with a reset, so no other state lasts between two of them."""
        state = self._rng.bit_generator.state["state"]
        words = [state["state"] >> 64, state["state"] % 2**64, state["inc"] >> 64, state["inc"] % 2**64]
        return {"points": self._points.copy(), "random": np.array(words, np.uint64)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        high, low, inc_high, inc_low = (int(word) for word in arrays["random"])
        state: dict[str, Any] = dict(self._rng.bit_generator.state)
        state["state"] = {"state": (high << 64) + low, "inc": (inc_high << 64) + inc_low}
        self._rng.bit_generator.state = state
        self.begin_at(arrays["points"])

    def close(self) -> None:
        return None

    def _tell(self, lost: int) -> None:
        """Report a fault at the first lost episode and whenever their number has doubled: f may fail often."""
        before, self._lost = self._lost, self._lost + lost
        if before.bit_length() != self._lost.bit_length():
            why = self._problem.last_error or "it returned a value that is not finite"
            self.faults.append(("f_failed", f"{self.spec.name}: {self._lost} episodes dropped so far: {why}"))

    def _random(self, n: int) -> np.ndarray:
        cube = cube_of(self._problem)
        return np.asarray(cube.points(jnp.asarray(self._rng.random((n, cube.sides)))))


@dataclass(frozen=True)
class ProblemSource:
    """A problem as a source of environments (`envs.source.Source`)."""

    problem: Problem
    time_steps: int
    sampler: str
    drivers: int
    fresh = True
    atari = False
    helper = None

    @property
    def name(self) -> str:
        return self.problem.name

    @property
    def target(self) -> Any:
        return self.problem

    @property
    def backend(self) -> str:
        return "jax" if self.problem.traceable else "gymnasium"

    @property
    def native(self) -> bool:
        return self.problem.traceable

    def spec(self) -> EnvSpec:
        return env_spec(self.problem)

    def batch(self, size: int, seed: int, actor: int) -> EnvBatch:
        if self.problem.traceable:
            return JaxBatch(self.jax_env(), size, seed, actor)
        return TuningBatch(self.problem, self.time_steps, size, seed, actor)

    def single(self, render: bool = False) -> EvalEnv:
        raise BadInput("a tuning law is judged by its regret, not by episodes")

    def starts(self, algorithm: Algorithm, actors: int) -> tuple[Starts, ...]:
        return drivers_starts(self.sampler, cube_of(self.problem), algorithm, self.drivers, actors)

    def jax_env(self) -> JaxEnv:
        return TuningEnv(self.problem, self.time_steps)


def env_spec(problem: Problem) -> EnvSpec:
    return EnvSpec(problem.name, ObsSpec((problem.width,)), problem.action_spec())


def cube_of(problem: Problem) -> Cube:
    """One side per knob, then one per condition."""
    return Cube(tuple(axis.width for axis in problem.axes), problem.n_conditions)
