"""Learning a law from few evaluations: propose, evaluate, fit, until the budget is spent; then distil a policy.

The proposals are `explorer`'s, from a surrogate of f that learns from every evaluation again and again. Each evaluation is on disk
before the next begins (`records`), so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

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
) -> Learnt:
    """A law with a surrogate, from at most `budget` evaluations of f, including those that found out how f can be called.

    `data` is a file of earlier evaluations, which do not count; `resume` is the folder of a stopped run, whose evaluations do.
    `score` adds the curve and the regret on the reporting conditions, which take evaluations of their own: no curve if f is called
    one point at a time, and no regret if f is so slow that searching the optima would take minutes.

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
    explorer = Explorer(problem, seed)
    counted = 0  # evaluations of a stopped run, which its budget has paid
    if data is not None:
        explorer.tell(*records.read(problem, data))
    if resume is not None:
        folder = _reopened(problem, resume, out)
        explorer.tell(*records.read(problem, folder.path / records.FILE))
        counted = len(explorer.values)
    else:
        folder = RunFolder.create(out, f"law-{problem.name}", ALGO, str(budget))
        told = {"problem": problem.describe(), "fingerprint": problem.fingerprint}
        folder.write_config({**told, "algo": {"name": ALGO}, "budget": budget, "seed": seed})
    # A curve takes a searched optimum for each of many conditions: too much where each evaluation is a call.
    spending = Spending(
        problem, explorer, budget - problem.probes - counted, folder, quiet, score and problem.kind != "python"
    )
    try:
        spending.run()
    except KeyboardInterrupt:
        print(f"{len(explorer.values):,} evaluations are kept: --resume {folder.path}", file=sys.stderr)
        raise
    except BadInput:
        if resume is None:
            folder.discard()
        raise
    spent = spending.spent  # reporting, below, has its own account
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
    known = int(np.isfinite(explorer.values).sum())
    curves = (scorer.mse, scorer.msle) if scorer is not None else (Scores(), Scores())
    learnt = Learnt(law, *curves, spent, len(explorer.values) - known)
    learnt.summary = {
        "function": problem.name,
        "algo": ALGO,
        "evaluations": spent,
        "budget": budget,
        "warm": len(explorer.values) - spending.fresh,
        "evaluations_of": {
            "probing": problem.probes,
            "training": spent,
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
    """The loop. `spent` counts the calls of f, `fresh` the points that they gave."""

    def __init__(
        self, problem: Problem, explorer: Explorer, left: int, folder: RunFolder, quiet: bool, score: bool
    ) -> None:
        self._score = score
        self.scorer: Scorer | None = None  # made when f has answered for the first time
        self._problem, self._explorer, self._folder, self._quiet = problem, explorer, folder, quiet
        self._first = problem.evaluations
        self._allowed = left
        self.fresh, self.f_s = 0, 0.0

    @property
    def spent(self) -> int:
        return self._problem.evaluations - self._first

    @property
    def seconds_each(self) -> float:
        return self.f_s / max(1, self.fresh)

    @property
    def room(self) -> int:
        """Points that can be evaluated. An f called with arrays may raise, and is then called once more for each of them."""
        left = self._allowed - self.spent
        return left // 2 if self._problem.kind == "numpy" else left

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
            design = min(max(4, self.room // 4), max(16, 10 * len(problem.axes)))
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
        for some in np.array_split(points, len(points)) if problem.kind == "python" else [points]:
            began = time.perf_counter()
            values, found = problem.measure(some)
            self.f_s += time.perf_counter() - began
            record.add(some, values, found)
            explorer.tell(some, values, found)
            self.fresh += len(some)
            if len(explorer.values) >= TRIES and not np.isfinite(explorer.values).any():
                self._refuse()
            if len(explorer.values) >= max(limits.FEW_TRIES, self._allowed // limits.SHARE):
                limits.refuse(problem, explorer.limits)

    def _refuse(self) -> None:
        n, why = len(self._explorer.values), self._problem.last_error or "it returned a value that is not finite"
        raise BadInput(f"{self._problem.name}: all of {n} evaluations failed: {why}")

    def _look(self) -> None:
        self._explorer.refresh()
        self._judge()
        if not self._quiet:
            values = np.where(limits.satisfied(self._explorer.limits), self._explorer.values, np.nan)
            best = f"lowest {np.nanmin(values):.4g}" if np.isfinite(values).any() else "none allowed yet"
            lowest = f"{best}, {1000 * self.seconds_each:.3g} ms an evaluation"
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
