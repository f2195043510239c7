"""The choice of the points to evaluate next, if evaluations are few: a design first, then points that a surrogate of f proposes.

Every proposal has a condition of its own, from an even sequence, so that the law is learnt for all conditions at once. Its knobs
minimise mean - kappa sd (Cox and John 1992), where kappa goes through `KAPPAS`: 0 is the answer that the law would give, larger
ones look where the surrogate is unsure.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np

from shoal.optimize.axes import Real
from shoal.optimize.problem import Problem
from shoal.optimize.search import CANDIDATES, FORBIDDEN, Search, all_knobs, even_conditions, even_knobs, even_points
from shoal.optimize.surrogate import ROWS, Surrogate, kernel_of
from shoal.optimize.threads import one_thread

KAPPAS = (0.0, 1.0, 2.0, 0.5)
GROWTH = 1.5  # the lengths are fitted again each time the rows have grown by this factor
SPREADING = 768  # rows that the spreads of proposals use, at most: half of them the newest
EARLY = 200  # rows up to which a fit starts from several lengths
# Candidates with the lowest means for which the spread is computed: how many, at least how far apart. Ripples make valleys that are
# narrower than those of the trend; if only distant candidates counted, the valley beside the best known one would never be tried.
SHORTLIST = {0.1: 4, 0.02: 6, 0.0: 2}
FEW_VALUES = 16  # of a discrete knob: each of them is compared
RIVALS = {0.0: 8, 2.0: 16}  # numbers of conditions to choose one from, by kappa
ESTIMATED = 32  # conditions over which the regret is estimated
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
        problem, surrogate, rng = self.problem, self.surrogate, self._rng
        search = Search(problem, surrogate, self._candidates(), self.models, margin=0.0)
        doubts = [_unsure(model) for model in (surrogate, *self.models)]
        asked = len(self.values) + (0 if pending is None else len(pending))
        kappas = np.resize(np.roll(KAPPAS, -asked), count)
        points = np.empty((count, problem.width))
        for group in (np.flatnonzero(kappas == kappa) for kappa in np.unique(kappas)):
            given = conditions[group] if conditions is not None else None
            points[group] = self._of_kappa(kappas[group[0]], search, doubts, len(group), given)
        fresh = self._new(points, pending)
        missing = count - len(fresh)
        if missing:  # the surrogate repeats itself, as it may with few values of the knobs
            also = fresh if pending is None else np.concatenate([fresh, pending])
            others = even_points(problem, 16 * missing, rng) if conditions is None else self._at(conditions, search)
            fresh = np.concatenate([fresh, self._new(others, also)[:missing]])
        return fresh

    def _of_kappa(
        self, kappa: float, search: Search, doubts: Sequence[Surrogate], count: int, given: np.ndarray | None
    ) -> np.ndarray:
        """Points [count, width] with the lowest mean - kappa sd, at conditions that are given, or drawn evenly.

        Of several conditions that are drawn for a point, one is taken: for kappa 0, where the surrogate is least sure of its
        answer; for the largest, where most may be gained. Even draws alone leave corners unknown, and the law answers there too.
        """
        problem = self.problem
        rivals = RIVALS.get(kappa, 1) if given is None and problem.n_conditions else 1
        if kappa and len(self.surrogate.rows) > SPREADING:
            rivals = 1  # spreads take too long, and are small
        conditions = even_conditions(problem, rivals * count, self._rng) if given is None else given
        if rivals > 1:  # shuffled, because points of the even sequence that are a power of two apart are neighbours
            conditions = self._rng.permutation(conditions)
        if kappa:
            points, promise = self._hoped(search, doubts, conditions, np.full(len(conditions), kappa))
        elif rivals > 1:
            points = problem.join(search.candidates[search.means(conditions).argmin(1)], conditions)
            promise = doubts[0].both(points)[1]
        else:
            return search.minima(conditions)
        picks = _apart(conditions, promise, count)
        best = points[picks]
        return np.asarray(best if kappa else search.minima(best[:, problem.knob_width :]))

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
        # Most rows that are kept are low: their own mean would promise minima wherever no row is kept.
        self.surrogate.given(rows[keep], values[keep], self.points[~known], float(values.mean()))
        for model, limit in zip(self.models, self.limits, strict=True):
            model.given(rows[keep], limit[known][keep], centre=float(limit[known].mean()))
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

    def regret(self) -> float:
        """An estimate of the law's regret, averaged over evenly spread conditions.

        At each condition it is the difference between the lowest mean and the lowest mean - sd.
        """
        search, doubts = self.search(), [_unsure(model) for model in (self.surrogate, *self.models)]
        count = ESTIMATED if self.problem.n_conditions else 1
        conditions = even_conditions(self.problem, count, np.random.default_rng(0))
        gains = self._hoped(search, doubts, conditions, np.ones(count))[1]
        told = np.isfinite(gains) & (
            gains < self.surrogate.scale * FORBIDDEN / 2
        )  # elsewhere, nothing is known to be allowed
        return float(gains[told].mean()) if told.any() else math.nan

    def _hoped(
        self, search: Search, doubts: Sequence[Surrogate], conditions: np.ndarray, kappas: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each condition [C, n_conditions] the point of the lowest mean - kappa sd, [C, width], and how far that is below the
        lowest mean, [C]; minus infinity where f is expected to fail."""
        means = search.means(conditions)
        hopes = means - kappas[:, None] * self.surrogate.ripples_unseen(search.candidates, self.problem.n_knobs)
        picks = np.concatenate(
            [search.spread_out(hopes, min(count, means.shape[1]), apart) for apart, count in SHORTLIST.items()]
            + [np.where(has, hopes, np.inf).argmin(1)[:, None] for has in self._values_of(search.candidates)],
            1,
        )
        points = self.problem.join(search.candidates[picks], conditions[:, None])  # [C, picks, width]
        flat, kappa = points.reshape(-1, self.problem.width), np.repeat(kappas, picks.shape[1])
        lows = [
            model.mean(flat) - kappa * doubt.both(flat)[1]
            for model, doubt in zip((self.surrogate, *self.models), doubts, strict=True)
        ]
        cost = search.cost(lows[0], lows[1:]).reshape(picks.shape)
        cost[np.isinf(np.take_along_axis(means, picks, 1))] = np.inf
        known, hoped = means.min(1), cost.min(1)
        gains = np.subtract(known, hoped, where=np.isfinite(hoped), out=np.full(len(known), -np.inf))
        return points[np.arange(len(points)), cost.argmin(1)], gains

    def _values_of(self, knobs: np.ndarray) -> Iterator[np.ndarray]:
        """For each value of each discrete knob that has few, which of the knobs [S, knob_width] have it: [S] bool.

        If only the lowest means counted, a value that has never been tried would not be compared with those that have.
        """
        at = 0
        for axis in self.problem.knobs:
            if not isinstance(axis, Real) and axis.size <= FEW_VALUES:
                index = np.asarray(axis.index(knobs[:, at : at + axis.width]))
                yield from (index == value for value in range(axis.size))
            at += axis.width

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


def _apart(conditions: np.ndarray, promise: np.ndarray, count: int) -> np.ndarray:
    """For each of `count` rows of rivals, [r count, n] in all, the most promising that is apart from those taken before: [count].

    Apart is half of the distance that `count` conditions have if they are spread evenly. If none is, the most promising is taken.
    """
    rivals = np.arange(len(conditions)).reshape(-1, count)
    if len(rivals) == 1:
        return np.arange(count)
    least = count ** (-1.0 / conditions.shape[1])
    taken: list[int] = []
    for mine in rivals.T:
        order = mine[np.argsort(-promise[mine], kind="stable")]
        gaps = np.linalg.norm(conditions[order, None] - conditions[None, taken], axis=-1).min(1, initial=np.inf)
        taken.append(int(order[(gaps >= least).argmax()]))
    return np.array(taken)


def _unsure(model: Surrogate) -> Surrogate:
    """A surrogate for spreads alone, with some of the rows if they are many: time grows with their square."""
    n, late = len(model.rows), SPREADING // 2
    if n <= SPREADING:
        return model
    keep = np.concatenate([np.linspace(0, n - late - 1, SPREADING - late).astype(int), np.arange(n - late, n)])
    made = Surrogate(model.kernel, model.theta)
    made.given(model.rows[keep], model.values[keep])
    made.centre, made.scale = model.centre, model.scale
    return made


def _rounded(points: np.ndarray) -> np.ndarray:
    return np.round(points / SAME).astype(np.int64)
