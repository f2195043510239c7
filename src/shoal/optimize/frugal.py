"""Learning a law from few evaluations: propose, evaluate, fit, until the budget is spent; then distil a policy.

The proposals are `explorer`'s, from a surrogate of f that learns from every evaluation again and again; `spending` is the loop.
Each evaluation is on disk as soon as it has ended (`records`), so that a stopped run can continue where it was.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize import records, truth
from shoal.optimize.distil import META, distil
from shoal.optimize.explorer import Explorer
from shoal.optimize.judge import Reported, left_out, reported, reporting_conditions
from shoal.optimize.law import Law
from shoal.optimize.learnt import Learnt
from shoal.optimize.problem import Problem
from shoal.optimize.search import Search, even_conditions
from shoal.optimize.spending import Known, Look, Spending
from shoal.optimize.truth import Scores
from shoal.process.lock import RunLock
from shoal.run.folder import RunFolder, read_json

BUDGET = 2000  # evaluations, unless told
PAIRS = 384  # conditions whose answers the policy is distilled from
PATIENCE = 60.0  # seconds for searching the optima of the reporting conditions, at most
ALGO = "surrogate"
EARLIER = "earlier"  # the name of a run's copy of its `data`, before .jsonl or .csv


class Start(NamedTuple):
    """The initial data of a run."""

    budget: int
    seed: int
    warm: Known | None  # evaluations of `data`, which do not count
    known: Known | None = None  # those of the stopped run, which its budget has paid
    crash: str | None = None  # of a driver of the stopped run


def learn_frugally(
    problem: Problem,
    *,
    budget: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    quiet: bool = True,
    score: bool = True,
    data: str | Path | None = None,
    resume: str | Path | None = None,
    started_at: float | None = None,
    announce: str = "",
    drivers: int = 1,
    look: Look | None = None,
) -> Learnt:
    """A law with a surrogate, from at most `budget` evaluations of f, including those that found out how f can be called.

    The budget is 2,000 and the seed 0 unless told; a resumed run has those of the stopped one, and another budget replaces that.
    `data` is a file of earlier evaluations, which do not count; `resume` is the folder of a stopped run, whose evaluations do.
    `score` adds the curve and the regret on the reporting conditions, which take evaluations of their own: no curve if f is called
    one point at a time, and no regret if f is so slow that searching the optima would take minutes. `announce` is printed to
    standard error when f has given a value, and no sooner, so that a refusal stands alone. With several `drivers`, f is evaluated
    in that many processes, and proposals wait for no evaluation; the order in which they end then decides what is proposed next.
    `look` is called each time the evaluations have doubled, with their number and the answers that a law would give then.

    A resumed run makes the stopped one's proposals again and reads their values, so that it continues with the points that would
    have been next. Before that, f is evaluated again where it was known (`CHECKS`): an f that changed is refused.

    Raises:
        BadInput: the budget is too small, earlier evaluations do not fit, the seed is not the stopped run's, or no tried point has
            a value that is allowed. If f has given a value, the folder stays and can be resumed; else a new one is removed.
    """
    began = time.monotonic() if started_at is None else started_at
    if drivers < 1:
        raise BadInput(f"drivers is {drivers}: at least 1")
    if drivers > 1 and problem.traceable:
        raise BadInput(
            f"drivers is {drivers}: {problem.name} is compiled and called with many points at once, by one driver"
        )
    if data is not None and resume is not None:
        raise BadInput("data and resume: only one of them, because a resumed run has its own data")
    records.refuse_value(problem)
    with _opened(problem, out, data, resume, budget, seed) as (folder, start):
        explorer = Explorer(problem, start.seed)
        if start.warm is not None:
            explorer.tell(*start.warm)
        # A curve takes a searched optimum for each of many conditions: too much where each evaluation is a call.
        scored = score and problem.kind != "python"
        allowed = start.budget - problem.probes
        spending = Spending(
            problem, explorer, allowed, folder, quiet, scored, start.known, announce, drivers, start.crash, look
        )
        try:
            spending.check()
            folder.amend_config(budget=start.budget)
            _spend(spending, folder, new=resume is None)
        except KeyboardInterrupt:
            _say(_kept(spending, folder))
            raise
        spent = spending.called  # reporting, below, has its own account
        law = _law(explorer, start.seed)
        law.save(folder.path / "law.safetensors")
        before = problem.evaluations
        reporting, why = reporting_conditions(problem) if score else None, None
        called = problem.kind == "python"  # in one large batch, evaluations cost far less than in the small ones here
        if reporting is not None and spending.crash is not None:
            reporting, why = None, spending.crash
        if reporting is not None and called:
            each = spending.seconds_each if spending.fresh else _seconds(problem)
            if each * truth.cost(problem) * len(reporting) > PATIENCE:
                reporting, why = None, "f is too slow to search its optima"
        polished = raw = Reported(why=why)
        if reporting is not None:
            polished, raw = (reported(law, reporting, polish=polish) for polish in (True, False))
        scorer = spending.scorer
        finite = int(np.isfinite(explorer.values).sum())
        curves = (scorer.mse, scorer.msle) if scorer is not None else (Scores(), Scores())
        learnt = Learnt(law, *curves, spent, len(explorer.values) - finite)
        learnt.summary = {
            "function": problem.name,
            "algo": ALGO,
            "evaluations": spent,
            "budget": start.budget,
            "warm": len(explorer.values) - spending.fresh,
            "evaluations_of": {
                "probing": problem.probes,
                "checking": spending.checked,
                "training": spent - spending.checked,
                "scoring": spending.scoring,
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
            "regret": polished.regret,
            "regret_of_policy": raw.regret,
            "left_out": left_out(curve=spending.unscored, regret=polished.why),
            **({"violations": polished.violations, "violations_of_policy": raw.violations} if problem.limits else {}),
            "best_mse": learnt.mse.summary().best,
            "best_msle": learnt.msle.summary().best,
            "wall_s": time.monotonic() - began,
            "f_s": spending.f_s,
            "drivers": drivers,
            "seed": start.seed,
            "run": str(folder.path),
        }
        folder.write_json(folder.summary_path, learnt.summary)
        return learnt


def _spend(spending: Spending, folder: RunFolder, *, new: bool) -> None:
    """Spend the evaluations. If f is refused, those that were made stay; a new folder goes if none of them gave a value."""
    try:
        spending.run()
    except BadInput as error:
        if spending.found:
            raise BadInput(f"{error}; {_kept(spending, folder)}") from None
        if new:
            folder.discard()
        raise


def _kept(spending: Spending, folder: RunFolder) -> str:
    return f"{spending.kept:,} evaluations are kept, go on with --resume {folder.path}"


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


@contextlib.contextmanager
def _opened(
    problem: Problem,
    out: str | Path | None,
    data: str | Path | None,
    resume: str | Path | None,
    budget: int | None,
    seed: int | None,
) -> Iterator[tuple[RunFolder, Start]]:
    """The run's folder, new or reopened, which no other run can use meanwhile, and what the run begins with."""
    if resume is not None:
        folder = _reopened(problem, resume, out)
        with RunLock(folder.path, _say):
            yield folder, _stopped(problem, folder, budget, seed)
        return
    budget = _checked(problem, BUDGET if budget is None else budget)
    start = Start(budget, seed or 0, None if data is None else records.read(problem, data))
    folder = RunFolder.create(out, f"law-{problem.name}", ALGO, str(budget))
    with RunLock(folder.path, _say):
        told = {"problem": problem.describe(), "fingerprint": problem.fingerprint}
        folder.write_config({**told, "algo": {"name": ALGO}, "budget": budget, "seed": start.seed})
        if data is not None:
            shutil.copyfile(data, folder.path / f"{EARLIER}{Path(data).suffix}")  # a resumed run needs it
        yield folder, start


def _stopped(problem: Problem, folder: RunFolder, budget: int | None, seed: int | None) -> Start:
    """The data with which the stopped run of this folder continues, with another budget if one is given."""
    config = read_json(folder.config_path)
    own = int(config.get("seed", 0))
    if seed not in (None, own):
        raise BadInput(f"seed is {seed}: a resumed run keeps its own, {own}")
    earlier = next(folder.path.glob(f"{EARLIER}.*"), None)
    return Start(
        _checked(problem, int(config.get("budget", BUDGET)) if budget is None else budget),
        own,
        None if earlier is None else records.read(problem, earlier),
        records.read(problem, folder.path / records.FILE),
        config.get("crash"),
    )


def _checked(problem: Problem, budget: int) -> int:
    if budget < 1:
        raise BadInput(f"budget is {budget}: at least 1 evaluation")
    if budget <= problem.probes:
        raise BadInput(f"budget is {budget}: finding out how f can be called took {problem.probes}")
    return budget


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _reopened(problem: Problem, path: str | Path, out: str | Path | None) -> RunFolder:
    folder = RunFolder.open(path)
    if out is not None and Path(out) != folder.path:
        raise BadInput(f"out is {str(out)!r}: a resumed run continues in its own folder, {str(folder.path)!r}")
    config = read_json(folder.config_path)
    if config.get("algo") != {"name": ALGO} or not (folder.path / records.FILE).is_file():
        raise BadInput(f"{str(path)!r} cannot be resumed: it has no evaluations of a law learnt by {ALGO}")
    if config.get("fingerprint") != problem.fingerprint:
        raise BadInput(f"{str(path)!r} is of another problem: its knobs or conditions are not those of {problem.name}")
    return folder
