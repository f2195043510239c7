"""Searching the minima of a surrogate's mean: many candidates, then gradient steps. f is not evaluated.

Constraints have surrogates of their own. The cost of a point is the mean, unless a constraint is expected to be violated there:
then it is larger than all means, and grows with the violation, so that a search without an allowed point ends at the least bad.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import qmc

from shoal.optimize.axes import Real
from shoal.optimize.kernel import Held, Side
from shoal.optimize.problem import Problem
from shoal.optimize.surrogate import Surrogate
from shoal.optimize.threads import one_thread

CANDIDATES = 256  # evenly spread settings of the knobs, and as many from the rows
FINITE = 4096  # settings of discrete knobs up to which all can be looked at
STARTS = 4  # descents per condition
STEPS = 6  # of every descent; the lowest continues
LAST = 16  # steps of the lowest
CACHED = 1 << 16  # numbers of an array at a time in a descent: more do not stay in the processor's cache
FIRST = 0.05  # length of the first step of a descent
APART = 0.1  # distance between the starts of descents, per root of a knob's columns
MARGIN = 0.01  # standard deviations of a constraint's values that answers keep away from 0
FORBIDDEN = 1e6  # standard deviations of f that a violation costs, so that it is worse than any value
AT_ONCE = 64  # conditions at a time, to bound memory
REACH = 1.25  # even conditions are stretched by this and clipped: a fifth of them lie on each pair of sides, some in the corners


def even_knobs(problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """Columns [n, knob_width] that cover the knobs' box evenly; whole numbers and choices appear equally often."""
    return _even(problem, n, rng, 0)[:, : problem.knob_width]


def all_knobs(problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """Columns [m, knob_width] of every setting of the knobs; if they are more than `FINITE`, an even spread of n."""
    sizes = [axis.size for axis in problem.knobs if not isinstance(axis, Real)]
    if len(sizes) < problem.n_knobs or math.prod(sizes) > FINITE:
        return even_knobs(problem, n, rng)
    picks = np.array(list(itertools.product(*map(range, sizes))), np.float64)
    return np.asarray(problem.from_action(np.zeros((len(picks), problem.width)), picks)[:, : problem.knob_width])


def even_points(problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """Points [n, width] that cover knobs and conditions evenly."""
    return _even(problem, n, rng, problem.n_conditions)


def even_conditions(problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """[n, n_conditions], evenly spread from -1 to 1, the ends among them: beyond the outermost ones a surrogate extrapolates."""
    return _reaching(_unit(problem.n_conditions, n, rng))


def _reaching(unit: np.ndarray) -> np.ndarray:
    """From the unit cube to conditions."""
    return np.asarray(np.clip(REACH * (2.0 * unit - 1.0), -1.0, 1.0))


def _even(problem: Problem, n: int, rng: np.random.Generator, conditions: int) -> np.ndarray:
    unit = _unit(problem.n_knobs + conditions, n, rng)
    action = np.empty((n, problem.n_knobs))
    for i, axis in enumerate(problem.knobs):
        column = unit[:, i]
        action[:, i] = (
            2.0 * column - 1.0 if isinstance(axis, Real) else np.minimum(column * axis.size, axis.size - 1) // 1
        )
    blank = np.zeros((n, problem.width))
    if conditions:
        blank[:, problem.knob_width :] = _reaching(unit[:, problem.n_knobs :])
    return np.asarray(problem.from_action(blank, action))


def _unit(sides: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """[n, sides] of a scrambled Sobol sequence, from 0 to 1."""
    if not sides:
        return np.zeros((n, 0))
    power = max(0, n - 1).bit_length()
    return np.asarray(qmc.Sobol(sides, rng=rng).random_base2(power)[:n])


def usual_candidates(problem: Problem, surrogate: Surrogate) -> np.ndarray:
    """Knob columns [S, knob_width]: an even spread, and the knobs of known rows; the latest rows are near the minima."""
    latest = surrogate.rows[-CANDIDATES:, : problem.knob_width]
    return np.concatenate([even_knobs(problem, CANDIDATES, np.random.default_rng(0)), latest])


class Search:
    """Minima of a surrogate's mean over the knobs, given conditions. Deterministic."""

    def __init__(
        self,
        problem: Problem,
        surrogate: Surrogate,
        candidates: np.ndarray | None = None,
        limits: Sequence[Surrogate] = (),
        margin: float = MARGIN,
    ) -> None:
        self._problem, self._surrogate, self._limits, self._margin = problem, surrogate, limits, margin
        self.candidates = usual_candidates(problem, surrogate) if candidates is None else candidates
        self._gaps = ((self.candidates[:, None] - self.candidates[None]) ** 2).sum(-1)
        self._moving = [i for i, axis in enumerate(problem.knobs) if isinstance(axis, Real)]
        self._columns = [surrogate.kernel.groups[i][0] for i in self._moving]
        self._sides: list[Side] = []  # of the candidates, for the surrogate of f and of each constraint
        self._held = [i for i in range(surrogate.kernel.axes) if i not in self._moving]

    def means(self, conditions: np.ndarray) -> np.ndarray:
        """The cost of every candidate: [C, S]; infinite where f is expected to fail."""
        problem = self._problem
        blank = np.zeros((len(conditions), problem.knob_width))
        given = np.concatenate([blank, conditions], 1)
        models = (self._surrogate, *self._limits)
        if not self._sides:
            knobs = np.pad(self.candidates, ((0, 0), (0, problem.n_conditions)))
            self._sides = [model.side_of(knobs, range(problem.n_knobs)) for model in models]
        means, *limits = (
            model.over(side, given, problem.n_knobs) for model, side in zip(models, self._sides, strict=True)
        )
        means = self.cost(means, limits)
        if len(self._surrogate.failed):
            for row, condition in zip(means, conditions, strict=True):
                row[~self._surrogate.works(problem.join(self.candidates, condition[None]))] = np.inf
        return means

    def cost(self, means: np.ndarray, limits: Sequence[np.ndarray]) -> np.ndarray:
        """The mean of f, or a larger number where a constraint, of these values, is violated. All of one shape."""
        if not limits:
            return means
        worst = np.max([g / model.scale for g, model in zip(limits, self._limits, strict=True)], 0) + self._margin
        forbidden = self._surrogate.centre + FORBIDDEN * self._surrogate.scale * (1.0 + worst)
        return np.asarray(np.where(worst > 0.0, forbidden, means))

    def costs(self, points: np.ndarray) -> np.ndarray:
        """The cost of points [M, width]: [M]; infinite where f is expected to fail."""
        cost = self.cost(self._surrogate.mean(points), [g.mean(points) for g in self._limits])
        return np.asarray(np.where(self._surrogate.works(points), cost, np.inf))

    def spread_out(self, costs: np.ndarray, count: int, apart: float = APART) -> np.ndarray:
        """The candidates with the lowest costs [C, S] that are this far from each other: positions [C, count].

        Distances are per root of the number of the knobs' columns.
        """
        close = self._gaps < apart**2 * self._problem.knob_width
        costs, every = costs.copy(), np.arange(len(costs))
        picks = np.empty((len(costs), count), int)
        for i in range(count):
            picks[:, i] = costs.argmin(1)
            costs[close[picks[:, i]]] += 1e30  # only if no other is left
            costs[every, picks[:, i]] = np.inf
        return picks

    @one_thread()
    def minima(self, conditions: np.ndarray) -> np.ndarray:
        """The points [C, width] with the lowest mean for conditions [C, n_conditions]."""
        parts = [self._minima(conditions[at : at + AT_ONCE]) for at in range(0, len(conditions), AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros((0, self._problem.width))

    def _minima(self, conditions: np.ndarray) -> np.ndarray:
        starts = min(STARTS, len(self.candidates))
        picks = self.spread_out(self.means(conditions), starts)
        points = self._problem.join(self.candidates[picks], conditions[:, None]).reshape(-1, self._problem.width)
        points, means, reach = self.descend(points)
        if len(self._moving) < self._problem.n_knobs:
            points, means, reach = self.descend(self._sweep(points))
        means = np.where(self._surrogate.works(points), means, np.inf).reshape(-1, starts)
        best = np.arange(len(conditions)) * starts + means.argmin(1)
        return self.descend(points[best], LAST, reach[best])[0]

    def descend(
        self, points: np.ndarray, steps: int = STEPS, reach: np.ndarray | float = FIRST
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps against the mean's gradient over the real knobs, each as long as has paid off, from points [M, width].

        Returns the points, their costs [M] and the lengths of the next steps [M], which begin with `reach`.
        """
        points, reach = np.array(points, np.float64), np.array(np.broadcast_to(reach, len(points)))
        if not self._columns:
            return points, self.costs(points), reach
        means, at_once = np.empty(len(points)), max(1, CACHED // max(1, len(self._surrogate.rows)))
        for at in range(0, len(points), at_once):
            some = slice(at, at + at_once)
            points[some], means[some], reach[some] = self._descend(points[some], steps, reach[some])
        return points, means, reach

    def _descend(self, points: np.ndarray, steps: int, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        surrogate, columns = self._surrogate, self._columns
        held = [self.held(points, model) for model in (surrogate, *self._limits)]
        mean, slope = self._downhill(points, held, reach)
        for _ in range(steps):
            at_edge = ((points[:, columns] >= 1.0) & (slope < 0)) | ((points[:, columns] <= -1.0) & (slope > 0))
            free = np.where(at_edge, 0.0, slope)
            length = np.linalg.norm(free, axis=1, keepdims=True)
            trial = points.copy()
            trial[:, columns] = np.clip(
                points[:, columns] - reach[:, None] * free / np.maximum(length, 1e-300), -1.0, 1.0
            )
            new, new_slope = self._downhill(trial, held, reach)
            better = (new < mean) & surrogate.works(trial)
            points[better], mean[better], slope[better] = trial[better], new[better], new_slope[better]
            reach = np.where(better, reach * 1.3, reach * 0.35)
        return points, mean, reach

    def _downhill(self, points: np.ndarray, held: list[Held], reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The costs [M] and where they rise [M, K]: f's gradient, along the edge of constraints within reach; or a constraint's."""
        mean, slope = self.slopes(points, held[0])
        if not self._limits:
            return mean, slope
        limits = [self.slopes(points, h, g) for h, g in zip(held[1:], self._limits, strict=True)]
        for (value, across), model in zip(limits, self._limits, strict=True):
            steep = np.linalg.norm(across, axis=1)
            normal = across / np.maximum(steep, 1e-300)[:, None]
            outward = np.einsum("mk,mk->m", slope, normal)  # below 0 if f falls towards the edge
            near = (value + self._margin * model.scale > -steep * reach) & (outward < 0.0)
            slope = np.where(near[:, None], slope - outward[:, None] * normal, slope)
        cost = self.cost(mean, [value for value, _ in limits])
        scaled = np.array([value / model.scale for (value, _), model in zip(limits, self._limits, strict=True)])
        worst = np.array([across for _, across in limits])[scaled.argmax(0), np.arange(len(points))]
        return cost, np.where((scaled.max(0) + self._margin > 0.0)[:, None], worst, slope)

    def held(self, points: np.ndarray, model: Surrogate | None = None) -> Held:
        """The part of `slopes` that depends on the axes that do not move."""
        s = model or self._surrogate
        return s.kernel.held(s.theta, s.side_of(points, self._held), s.weights)

    def slopes(self, points: np.ndarray, held: Held, model: Surrogate | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean [M] and its gradient over the real knobs [M, K], in units of f, or of the constraint of this model."""
        s = model or self._surrogate
        value, gradient = s.kernel.moved(s.theta, points, s.rows, self._moving, held)
        return s.centre + s.scale * value, s.scale * gradient

    def _sweep(self, points: np.ndarray) -> np.ndarray:
        """Improve the points one discrete knob after another: try all its values, hold the others, and keep the best."""
        for i, axis in enumerate(self._problem.knobs):
            if isinstance(axis, Real):
                continue
            columns = list(self._surrogate.kernel.groups[i])
            tried = np.repeat(points[:, None], axis.size, 1)
            tried[..., columns] = axis.columns(np.arange(axis.size, dtype=np.float64))
            flat = tried.reshape(-1, points.shape[1])
            points = tried[np.arange(len(points)), self.costs(flat).reshape(len(points), -1).argmin(1)]
        return points
