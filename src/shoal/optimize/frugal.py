"""Learning a law from few evaluations: propose, evaluate, fit, until the budget is spent; then distil a policy.

The proposals are `explorer`'s, from a surrogate of f that learns from every evaluation again and again. Each evaluation is on disk
before the next begins (`records`), so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np

from shoal.core.errors import BadInput, RunFailed
from shoal.optimize import limits, records, truth
from shoal.optimize.distil import META, distil
from shoal.optimize.explorer import Explorer
from shoal.optimize.judge import Scorer, reporting_conditions
from shoal.optimize.law import Law
from shoal.optimize.learnt import Learnt
from shoal.optimize.problem import Problem
from shoal.optimize.search import Search, even_conditions
from shoal.optimize.truth import Scores
from shoal.run.folder import RunFolder, read_json

BUDGET = 2000  # evaluations, unless told
TRIES = 64  # consecutive failures after which f is refused
BATCH = 12  # a batch of proposals is this fraction of the rows
PAIRS = 384  # conditions whose answers the policy is distilled from
LOOKS = 2.0  # the curve is scored each time the evaluations have grown by this factor
PATIENCE = 60.0  # seconds for searching the optima of the reporting conditions, at most
ALGO = "surrogate"
EARLIER = "earlier"  # the name of a run's copy of its `data`, before .jsonl or .csv
CHECKS = 8  # evaluations of a stopped run that are made again, to see whether f changed
SAME = 1e-5  # by how much values may differ, in standard deviations of f or of themselves
TRIED = 1e-9  # by how much coordinates may differ after a file
Known = tuple[np.ndarray, np.ndarray, np.ndarray]  # points [n, width], values [n], constraints [G, n]


def learn_frugally(
    problem: Problem,
    *,
    budget: int = BUDGET,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = True,
    score: bool = True,
    data: str | Path | None = None,
    resume: str | Path | None = None,
    started_at: float | None = None,
    announce: str = "",
) -> Learnt:
    """A law with a surrogate, from at most `budget` evaluations of f, including those that found out how f can be called.

    `data` is a file of earlier evaluations, which do not count; `resume` is the folder of a stopped run, whose evaluations do.
    `score` adds the curve and the regret on the reporting conditions, which take evaluations of their own: no curve if f is called
    one point at a time, and no regret if f is so slow that searching the optima would take minutes. `announce` is printed to
    standard error when f has given a value, and no sooner, so that a refusal stands alone.

    A resumed run makes the stopped one's proposals again and reads their values, so that it goes on with the points that would
    have been next. Before that, f is evaluated again where it was known (`CHECKS`): an f that changed is refused.

    Raises:
        BadInput: the budget is too small, earlier evaluations do not fit, or no tried point has a value that is allowed.
    """
    began = time.monotonic() if started_at is None else started_at
    if budget < 1:
        raise BadInput(f"budget is {budget}: at least 1 evaluation")
    if budget <= problem.probes:
        raise BadInput(f"budget is {budget}: finding out how f can be called took {problem.probes}")
    if data is not None and resume is not None:
        raise BadInput("data and resume: only one of them, because a resumed run has its own data")
    records.refuse_value(problem)
    known = None  # evaluations of a stopped run, which its budget has paid
    if resume is not None:
        folder = _reopened(problem, resume, out)
        known = records.read(problem, folder.path / records.FILE)
        seed = int(read_json(folder.config_path).get("seed", seed))
        data = next(folder.path.glob(f"{EARLIER}.*"), None)
    explorer = Explorer(problem, seed)
    if data is not None:
        explorer.tell(*records.read(problem, data))
    if resume is None:
        folder = RunFolder.create(out, f"law-{problem.name}", ALGO, str(budget))
        told = {"problem": problem.describe(), "fingerprint": problem.fingerprint}
        folder.write_config({**told, "algo": {"name": ALGO}, "budget": budget, "seed": seed})
        if data is not None:
            shutil.copyfile(data, folder.path / f"{EARLIER}{Path(data).suffix}")  # a resumed run needs it
    # A curve takes a searched optimum for each of many conditions: too much where each evaluation is a call.
    scored = score and problem.kind != "python"
    spending = Spending(problem, explorer, budget - problem.probes, folder, quiet, scored, known, announce)
    try:
        spending.check()
        spending.run()
    except KeyboardInterrupt:
        kept = max(len(explorer.values), 0 if known is None else len(known[1]))
        print(f"{kept:,} evaluations are kept: --resume {folder.path}", file=sys.stderr)
        raise
    except BadInput:
        if resume is None:
            folder.discard()
        raise
    spent = spending.called  # reporting, below, has its own account
    law = _law(explorer, seed)
    law.save(folder.path / "law.safetensors")
    before = problem.evaluations
    reporting = reporting_conditions(problem) if score else None
    called = problem.kind == "python"  # in one large batch, evaluations cost far less than in the small ones here
    if reporting is not None and called:
        each = spending.seconds_each if spending.fresh else _seconds(problem)
        if each * truth.cost(problem) * len(reporting) > PATIENCE:
            reporting = None
    violated = [None if reporting is None else law.violations(reporting, polish=polish) for polish in (True, False)]
    regrets = [
        None if reporting is None or lost == len(reporting) else law.regret_at(reporting, polish=polish)._asdict()
        for polish, lost in zip((True, False), violated, strict=True)
    ]
    scorer = spending.scorer
    finite = int(np.isfinite(explorer.values).sum())
    curves = (scorer.mse, scorer.msle) if scorer is not None else (Scores(), Scores())
    learnt = Learnt(law, *curves, spent, len(explorer.values) - finite)
    learnt.summary = {
        "function": problem.name,
        "algo": ALGO,
        "evaluations": spent,
        "budget": budget,
        "warm": len(explorer.values) - spending.fresh,
        "evaluations_of": {
            "probing": problem.probes,
            "checking": spending.checked,
            "training": spent - spending.checked,
            "scoring": scorer.evaluations if scorer is not None else 0,
            "reporting": problem.evaluations - before,
        },
        "dropped": learnt.dropped,
        "rows": len(explorer.surrogate.rows),
        "noise": explorer.surrogate.noise,
        "conditions": {
            "training": "an even sequence",
            "scoring": len(problem.condition_grid()) if scorer is not None else 0,
            "reporting": 0 if reporting is None else len(reporting),
        },
        "regret": regrets[0],
        "regret_of_policy": regrets[1],
        **({"violations": violated[0], "violations_of_policy": violated[1]} if problem.limits else {}),
        "best_mse": learnt.mse.summary().best,
        "best_msle": learnt.msle.summary().best,
        "wall_s": time.monotonic() - began,
        "f_s": spending.f_s,
        "seed": seed,
        "run": str(folder.path),
    }
    folder.write_json(folder.summary_path, learnt.summary)
    return learnt


class Spending:
    """The loop. `called` counts the calls of f, `fresh` the points that they gave; `known` are those of a stopped run."""

    def __init__(
        self,
        problem: Problem,
        explorer: Explorer,
        allowed: int,
        folder: RunFolder,
        quiet: bool,
        score: bool,
        known: Known | None,
        announce: str,
    ) -> None:
        self._known, self._replayed, self._announce = known, 0, announce
        self.checked = 0  # evaluations that compared f with the stopped run's
        self._score = score
        self.scorer: Scorer | None = None  # made when f has answered for the first time
        self._problem, self._explorer, self._folder, self._quiet = problem, explorer, folder, quiet
        self._first = problem.evaluations
        self._allowed = allowed
        self.fresh, self.f_s = 0, 0.0

    @property
    def called(self) -> int:
        return self._problem.evaluations - self._first

    @property
    def replaying(self) -> bool:
        return self._known is not None and self._replayed < len(self._known[1])

    @property
    def seconds_each(self) -> float:
        return self.f_s / max(1, self.fresh)

    @property
    def room(self) -> int:
        """Points that can be evaluated."""
        return self._points_of(self._allowed - self.called - self._replayed)

    def _points_of(self, evaluations: int) -> int:
        """Points for this number of evaluations. An f called with arrays that raises is called once more for each of them."""
        return evaluations // 2 if self._problem.kind == "numpy" else evaluations

    def check(self) -> None:
        """Evaluate f again at some of the known points, within the budget.

        Raises:
            BadInput: f changed.
        """
        if self._known is None:
            return
        problem, (points, values, found) = self._problem, self._known
        finite = np.flatnonzero(np.isfinite(values))
        picks = finite[np.linspace(0, len(finite) - 1, min(CHECKS, len(finite))).astype(int)] if len(finite) else finite
        picks = picks[: max(0, self._points_of(self._allowed - len(values)))]
        if not len(picks):
            return
        before = problem.evaluations
        now, limits_now = problem.measure(points[picks])
        self.checked = problem.evaluations - before
        for was, new in zip((values, *found), (now, *limits_now), strict=True):
            spread, old = float(np.nanstd(was)), was[picks]
            gaps = np.where(np.isfinite(old) | np.isfinite(new), np.abs(new - old), 0.0)
            if problem.noisy:  # values differ anyway, by less than f does over its box
                gaps = np.full(len(old), np.sqrt(np.nanmean(gaps**2)) - spread)
            odd = ~(gaps <= SAME * np.maximum(spread, np.abs(old)))
            if odd.any():
                i = int(odd.argmax())
                at = ", ".join(f"{n}={records.plain(v)}" for n, v in problem.denormalise(points[picks[i]]).items())
                raise BadInput(
                    f"{problem.name} changed since this run was stopped: at {at} it was {old[i]:.6g} and is {new[i]:.6g};"
                    f" begin a new run, with --data {self._folder.path / records.FILE} if the old values still help"
                )

    def run(self) -> None:
        """Spend the evaluations; score the law now and then.

        Raises:
            BadInput: f failed wherever it was tried.
            RunFailed: nothing was left to evaluate, and nothing is known.
        """
        explorer, problem = self._explorer, self._problem
        record = records.Record(problem, self._folder.path / records.FILE)
        try:
            look = 0.0
            design = min(max(4, self._points_of(self._allowed) // 4), max(16, 10 * len(problem.axes)))
            while self.room > 0:
                known = len(explorer.values)
                count = design - known if known < design else max(1 if not problem.n_conditions else 4, known // BATCH)
                asked = explorer.design if known < design else explorer.ask
                points = asked(min(count, self.room, TRIES if not np.isfinite(explorer.values).any() else count))
                if not len(points):
                    break  # all points of a finite problem have been tried
                self._evaluate(points, record)
                if np.isfinite(explorer.values).any() and len(explorer.values) >= look:
                    look = LOOKS * len(explorer.values)
                    self._look()
        finally:
            record.close()
        self._tell_rest()
        if not np.isfinite(explorer.values).any():
            if not len(explorer.values):
                raise RunFailed(f"{problem.name}: no evaluation is left, and none is known")
            self._refuse()
        limits.refuse(problem, explorer.limits)
        explorer.refresh()
        self._judge()

    def _evaluate(self, points: np.ndarray, record: records.Record) -> None:
        """f at each of them: one by one, and written at once, if each is a call of its own."""
        explorer, problem = self._explorer, self._problem
        points = self._replay(points)
        self._say()
        if not len(points):
            return
        for some in np.array_split(points, len(points)) if problem.kind == "python" else [points]:
            began = time.perf_counter()
            values, found = problem.measure(some)
            self.f_s += time.perf_counter() - began
            record.add(some, values, found)
            explorer.tell(some, values, found)
            self.fresh += len(some)
            self._say()
            if len(explorer.values) >= TRIES and not np.isfinite(explorer.values).any():
                self._refuse()
            if len(explorer.values) >= max(limits.FEW_TRIES, self._allowed // limits.SHARE):
                limits.refuse(problem, explorer.limits)

    def _replay(self, points: np.ndarray) -> np.ndarray:
        """Tell the known values of the first points; the others are left. None is, if the stopped run had other points."""
        if self._known is None or not self.replaying:
            return points
        known, values, found = self._known
        now = slice(self._replayed, self._replayed + len(points))
        n = len(values[now])
        if (np.abs(points[:n] - known[now]) > TRIED).any():  # made by another version
            self._tell_rest()
            return points[:0]
        self._explorer.tell(points[:n], values[now], found[:, now])
        self._replayed += n
        return points[n:]

    def _tell_rest(self) -> None:
        """Tell the known values that have not been told."""
        if self._known is not None and self.replaying:
            points, values, found = (column[..., self._replayed :] for column in (self._known[0].T, *self._known[1:]))
            self._explorer.tell(points.T, values, found)
            self._replayed += len(values)

    def _say(self) -> None:
        """Print the announcement, once there is a value that is allowed."""
        found = np.isfinite(self._explorer.values) & limits.satisfied(self._explorer.limits)
        if self._announce and found.any():
            print(self._announce, file=sys.stderr, flush=True)
            self._announce = ""

    def _refuse(self) -> None:
        n, why = len(self._explorer.values), self._problem.last_error or "it returned a value that is not finite"
        raise BadInput(f"{self._problem.name}: all of {n} evaluations failed: {why}")

    def _look(self) -> None:
        self._explorer.refresh()
        values = np.where(limits.satisfied(self._explorer.limits), self._explorer.values, np.nan)
        if self.replaying or not np.isfinite(values).any():  # optima cannot be searched if nothing is allowed
            return
        self._judge()
        if not self._quiet:
            lowest = f"lowest {np.nanmin(values):.4g}, {1000 * self.seconds_each:.3g} ms an evaluation"
            print(f"{self._problem.name}: {len(values):,} evaluations, {lowest}", file=sys.stderr, flush=True)

    def _judge(self) -> None:
        if not self._score:
            return
        first, at = self._problem.evaluations, len(self._explorer.values)
        self.scorer = self.scorer or Scorer(self._problem)
        if at not in self.scorer.mse.steps:
            self.scorer.judge(at, Polished(self._problem, self._explorer))
        self._first += self._problem.evaluations - first  # scoring has its own account


class Polished:
    """The answers that a law with this surrogate would give."""

    def __init__(self, problem: Problem, explorer: Explorer) -> None:
        self._search = Search(problem, explorer.surrogate, limits=explorer.models)

    def answers(self, conditions: np.ndarray) -> np.ndarray:
        return self._search.minima(conditions)


def _law(explorer: Explorer, seed: int) -> Law:
    problem = explorer.problem
    count = PAIRS if problem.n_conditions else 1
    conditions = even_conditions(problem, count, np.random.default_rng(seed))
    points = Search(problem, explorer.surrogate, limits=explorer.models).minima(conditions)
    meta = {**META, "step": len(explorer.values)}
    return Law(problem, distil(problem, points, seed), META["time_steps"], meta, explorer.surrogate, explorer.models)


def _seconds(problem: Problem) -> float:
    """Seconds of one evaluation, for a run that had none of its own."""
    began = time.perf_counter()
    problem.evaluate(problem.sample(np.random.default_rng(0), 1))
    return time.perf_counter() - began


def _reopened(problem: Problem, path: str | Path, out: str | Path | None) -> RunFolder:
    folder = RunFolder.open(path)
    if out is not None and Path(out) != folder.path:
        raise BadInput(f"out is {str(out)!r}: a resumed run goes on in its own folder, {str(folder.path)!r}")
    config = read_json(folder.config_path)
    if config.get("algo") != {"name": ALGO} or not (folder.path / records.FILE).is_file():
        raise BadInput(f"{str(path)!r} cannot be resumed: it has no evaluations of a law learnt by {ALGO}")
    if config.get("fingerprint") != problem.fingerprint:
        raise BadInput(f"{str(path)!r} is of another problem: its knobs or conditions are not those of {problem.name}")
    return folder
