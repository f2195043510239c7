"""The choice of the points to evaluate next, if evaluations are few: a design first, then points that a surrogate of f proposes.

Every proposal has a condition of its own, from an even sequence, so that the law is learnt for all conditions at once. Its knobs
minimise mean - kappa sd (Cox and John 1992), where kappa goes through `KAPPAS`: 0 is the answer that the law would give, larger
ones look where the surrogate is unsure.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np

from shoal.optimize.axes import Real
from shoal.optimize.problem import Problem
from shoal.optimize.search import CANDIDATES, Search, all_knobs, even_conditions, even_knobs, even_points
from shoal.optimize.surrogate import ROWS, Surrogate, kernel_of
from shoal.optimize.threads import one_thread

KAPPAS = (0.0, 1.0, 2.0, 0.5)
GROWTH = 1.5  # the lengths are fitted again each time the rows have grown by this factor
EARLY = 200  # rows up to which a fit starts from several lengths
# Candidates with the lowest means for which the spread is computed: how many, at least how far apart. Ripples make valleys that are
# narrower than those of the trend; if only distant candidates counted, the valley beside the best known one would never be tried.
SHORTLIST = {0.1: 4, 0.02: 6, 0.0: 2}
JITTER = (0.002, 0.1)  # standard deviations of random moves away from knobs that were tried
HUGE = 1000.0  # times the first rows' median above the lowest value: what lies higher counts as a failure
SAME = 1e-6  # points closer than this are the same


class Explorer:
    """Ask for points, tell their values, in any order. The same seed, asks and tells give the same bits."""

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        self.problem = problem
        self.points = np.zeros((0, problem.width))
        self.values = np.zeros(0)  # NaN where f failed
        self.limits = np.zeros((len(problem.limits), 0))  # the constraints, NaN where they failed
        self.surrogate = Surrogate(kernel_of(problem))
        self.models = tuple(Surrogate(kernel_of(problem)) for _ in problem.limits)  # of the constraints
        self._rng = np.random.default_rng(seed)
        self._fit_at = 0
        self._fitted_to = -1
        self._gaps = np.zeros(0)

    @classmethod
    def knowing(cls, problem: Problem, surrogate: Surrogate, models: Sequence[Surrogate]) -> Explorer:
        """An explorer with the rows of these surrogates, and their lengths until the rows have grown."""
        made = cls(problem)
        made.surrogate = Surrogate(surrogate.kernel, surrogate.theta)
        made.models = tuple(Surrogate(model.kernel, model.theta) for model in models)
        known = np.array([model.values for model in models]).reshape(len(models), len(surrogate.rows))
        made.tell(surrogate.rows, surrogate.values, known)
        n = len(surrogate.failed)
        made.tell(surrogate.failed, np.full(n, np.nan), np.full((len(models), n), np.nan))
        made._fit_at = int(len(surrogate.rows) * GROWTH) + 1
        return made

    def search(self) -> Search:
        """Finds the answers of a law with these surrogates."""
        return Search(self.problem, self.surrogate, limits=self.models)

    def tell(self, points: np.ndarray, values: np.ndarray, limits: np.ndarray | None = None) -> None:
        """Add points [n, width] with their values [n] and those of the constraints [G, n], NaN where they failed."""
        if limits is None:
            limits = np.zeros((0, len(points)))
        self.limits = np.concatenate([self.limits, limits], 1)
        values = np.where(np.isfinite(limits).all(0), values, np.nan)
        self.points = np.concatenate([self.points, points])
        self.values = np.concatenate([self.values, np.where(np.isfinite(values), values, np.nan)])

    def design(self, count: int, *, pending: np.ndarray | None = None) -> np.ndarray:
        """Evenly spread points [count, width], or fewer if the problem has fewer. None of them is pending."""
        return self._new(even_points(self.problem, count, self._rng), pending)

    @one_thread()
    def ask(self, count: int, conditions: np.ndarray | None = None, *, pending: np.ndarray | None = None) -> np.ndarray:
        """At most `count` new points [n, width]; none if all points of a finite problem have been tried.

        Conditions [count, n_conditions] are drawn evenly unless given. A point that the surrogate proposes twice is replaced: by
        one of an even spread, or, if conditions are given, by other knobs there, those of the lowest cost.
        For points that are `pending` [p, width] the surrogate's own expectation counts as f's value: proposals lie elsewhere.
        """
        if not np.isfinite(self.values).any():
            return self.design(count, pending=pending)
        self.refresh()
        known = self.surrogate, self.models
        if pending is not None and len(pending):
            self.surrogate = _believing(self.surrogate, pending)
            self.models = tuple(_believing(model, pending) for model in self.models)
        try:
            return self._proposed(count, conditions, pending)
        finally:
            self.surrogate, self.models = known

    def _proposed(self, count: int, conditions: np.ndarray | None, pending: np.ndarray | None) -> np.ndarray:
        problem, surrogate, anywhere = self.problem, self.surrogate, conditions is None
        if conditions is None:
            conditions = even_conditions(problem, count, self._rng)
        search = Search(problem, surrogate, self._candidates(), self.models, margin=0.0)
        kappas = np.resize(np.roll(KAPPAS, -len(self.values)), count)
        points = np.empty((count, problem.width))
        points[kappas == 0.0] = search.minima(conditions[kappas == 0.0])
        curious = np.flatnonzero(kappas)
        if len(curious):
            points[curious] = self._curious(search, conditions[curious], kappas[curious])
        fresh = self._new(points, pending)
        missing = count - len(fresh)
        if missing:  # the surrogate repeats itself, as it may with few values of the knobs
            also = fresh if pending is None else np.concatenate([fresh, pending])
            others = even_points(problem, 16 * missing, self._rng) if anywhere else self._at(conditions, search)
            fresh = np.concatenate([fresh, self._new(others, also)[:missing]])
        return fresh

    def _at(self, conditions: np.ndarray, search: Search) -> np.ndarray:
        """Points [n, width] at these conditions whose knobs are spread evenly, or all there are; the lowest cost first."""
        knobs = all_knobs(self.problem, CANDIDATES, self._rng)
        points = self.problem.join(knobs[None], conditions[:, None]).reshape(-1, self.problem.width)
        return np.asarray(points[np.argsort(search.costs(points), kind="stable")])

    @one_thread()
    def refresh(self) -> None:
        """Bring the surrogate up to the values told. At least one must be finite."""
        if self._fitted_to == len(self.values):
            return
        known = self._known()
        rows, values = self.points[known], self.values[known]
        if len(rows) >= self._fit_at:
            self.surrogate.fit(rows, values, self._rng, fresh=len(rows) < EARLY)
            for model, limit in zip(self.models, self.limits, strict=True):
                model.fit(rows, limit[known], self._rng, fresh=len(rows) < EARLY)
            self._fit_at = int(len(rows) * GROWTH) + 1
        keep = self._kept(rows, values)
        self.surrogate.given(rows[keep], values[keep], self.points[~known])
        for model, limit in zip(self.models, self.limits, strict=True):
            model.given(rows[keep], limit[known][keep])
        self._fitted_to = len(self.values)

    def _known(self) -> np.ndarray:
        """Mask of the values that the surrogate learns from: [n] bool."""
        found = np.isfinite(self.values)
        early = max(8, 5 * len(self.problem.axes))
        first = self.values[:early]  # later rows are too near the minima to tell what is usual
        if not np.isfinite(first).any():
            return found
        low = self.values[found].min()
        above = first[np.isfinite(first)] - low
        if not np.median(above):  # most lie on a plateau at the minimum, which does not say how high f usually is
            above = above[above > 0.0]
        usual = np.median(above) if len(above) else np.inf
        return np.asarray(found & (self.values - low <= HUGE * usual))

    def _kept(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Positions of at most `ROWS` rows: three quarters near the predicted minimum of their condition, and a random rest."""
        if len(rows) <= ROWS:
            return np.arange(len(rows))
        if len(self._gaps) < len(rows):  # the gap of a row is judged once, by the surrogate of that time
            search = Search(self.problem, self.surrogate, limits=self.models, margin=0.0)
            new = slice(len(self._gaps), len(rows))
            given = rows[new, self.problem.knob_width :]
            lowest = [search.means(given[at : at + 512]).min(1) for at in range(0, len(given), 512)]
            self._gaps = np.concatenate([self._gaps, values[new] - np.concatenate(lowest)])
        order = np.argsort(self._gaps, kind="stable")
        near, rest = order[: ROWS * 3 // 4], order[ROWS * 3 // 4 :]
        return np.sort(np.concatenate([near, self._rng.choice(rest, ROWS - len(near), replace=False)]))

    def _candidates(self) -> np.ndarray:
        """Knobs: an even spread, and the latest ones that were tried, moved a little."""
        problem, rng = self.problem, self._rng
        latest = self.surrogate.rows[-CANDIDATES:, : problem.knob_width]
        size = np.exp(rng.uniform(math.log(JITTER[0]), math.log(JITTER[1]), (len(latest), 1)))
        real = np.concatenate([np.full(axis.width, isinstance(axis, Real)) for axis in problem.knobs])
        moved = np.clip(latest + real * size * rng.standard_normal(latest.shape), -1.0, 1.0)
        return np.concatenate([even_knobs(problem, CANDIDATES, rng), moved])

    def _curious(self, search: Search, conditions: np.ndarray, kappas: np.ndarray) -> np.ndarray:
        means = search.means(conditions)
        hopes = means - kappas[:, None] * self.surrogate.ripples_unseen(search.candidates, self.problem.n_knobs)
        picks = np.concatenate(
            [search.spread_out(hopes, min(count, means.shape[1]), apart) for apart, count in SHORTLIST.items()], 1
        )
        points = self.problem.join(search.candidates[picks], conditions[:, None])  # [C, 2 count, width]
        mean, spread = self.surrogate.both(points.reshape(-1, self.problem.width))
        kappa = np.repeat(kappas, picks.shape[1])
        limits = [m - kappa * s for m, s in (model.both(points.reshape(-1, points.shape[-1])) for model in self.models)]
        cost = search.cost(mean - kappa * spread, limits).reshape(picks.shape)
        cost[np.isinf(np.take_along_axis(means, picks, 1))] = np.inf
        return np.asarray(points[np.arange(len(points)), cost.argmin(1)])

    def _new(self, points: np.ndarray, also: np.ndarray | None = None) -> np.ndarray:
        """Those points that were neither tried before nor are repeated among themselves."""
        tried = self.points if also is None else np.concatenate([self.points, also])
        seen = {row.tobytes() for row in _rounded(tried)}
        fresh = []
        for point, key in zip(points, _rounded(points), strict=True):
            if key.tobytes() not in seen:
                seen.add(key.tobytes())
                fresh.append(point)
        return np.array(fresh).reshape(-1, points.shape[1])


def _believing(model: Surrogate, points: np.ndarray) -> Surrogate:
    """A copy that also knows these points, with the values that `model` expects there."""
    made = copy.copy(model)
    made.given(np.concatenate([model.rows, points]), np.concatenate([model.values, model.mean(points)]), model.failed)
    return made


def _rounded(points: np.ndarray) -> np.ndarray:
    return np.round(points / SAME).astype(np.int64)
