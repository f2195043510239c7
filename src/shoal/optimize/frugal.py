"""Learning a law from few evaluations: propose, evaluate, fit, until the budget is spent; then distil a policy.

The proposals are `explorer`'s, from a surrogate of f that learns from every evaluation again and again; `spending` is the loop.
Each evaluation is on disk as soon as it has ended (`records`), so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize import records, truth
from shoal.optimize.distil import META, distil
from shoal.optimize.explorer import Explorer
from shoal.optimize.judge import reporting_conditions
from shoal.optimize.law import Law
from shoal.optimize.learnt import Learnt
from shoal.optimize.problem import Problem
from shoal.optimize.search import Search, even_conditions
from shoal.optimize.spending import Spending
from shoal.optimize.truth import Scores
from shoal.run.folder import RunFolder, read_json

BUDGET = 2000  # evaluations, unless told
PAIRS = 384  # conditions whose answers the policy is distilled from
PATIENCE = 60.0  # seconds for searching the optima of the reporting conditions, at most
ALGO = "surrogate"
EARLIER = "earlier"  # the name of a run's copy of its `data`, before .jsonl or .csv


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
    drivers: int = 1,
) -> Learnt:
    """A law with a surrogate, from at most `budget` evaluations of f, including those that found out how f can be called.

    `data` is a file of earlier evaluations, which do not count; `resume` is the folder of a stopped run, whose evaluations do.
    `score` adds the curve and the regret on the reporting conditions, which take evaluations of their own: no curve if f is called
    one point at a time, and no regret if f is so slow that searching the optima would take minutes. `announce` is printed to
    standard error when f has given a value, and no sooner, so that a refusal stands alone. With several `drivers`, f is evaluated
    in that many processes, and proposals wait for no evaluation; the order in which they end then decides what is proposed next.

    A resumed run makes the stopped one's proposals again and reads their values, so that it goes on with the points that would
    have been next. Before that, f is evaluated again where it was known (`CHECKS`): an f that changed is refused.

    Raises:
        BadInput: the budget is too small, earlier evaluations do not fit, or no tried point has a value that is allowed.
    """
    began = time.monotonic() if started_at is None else started_at
    if budget < 1:
        raise BadInput(f"budget is {budget}: at least 1 evaluation")
    if drivers < 1:
        raise BadInput(f"drivers is {drivers}: at least 1")
    if drivers > 1 and problem.traceable:
        raise BadInput(
            f"drivers is {drivers}: {problem.name} is compiled and called with many points at once, by one driver"
        )
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
    spending = Spending(problem, explorer, budget - problem.probes, folder, quiet, scored, known, announce, drivers)
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
        "drivers": drivers,
        "seed": seed,
        "run": str(folder.path),
    }
    folder.write_json(folder.summary_path, learnt.summary)
    return learnt


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
