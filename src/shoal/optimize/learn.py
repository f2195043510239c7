"""Learning a law: the problem becomes environments, and the ordinary algorithms, topologies and runtimes do the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal import launch
from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Report
from shoal.experiment import Plan, merge, resolve, runtime_of
from shoal.launch.compose import initial_state, make_algorithm
from shoal.optimize import frugal, limits
from shoal.optimize.averaging import Laws
from shoal.optimize.choice import choose
from shoal.optimize.judge import (
    CHOOSING,
    EVERY,
    KEEP,
    Chooser,
    Reported,
    Scorer,
    Watch,
    choosing_conditions,
    left_out,
    reported,
    reporting_conditions,
)
from shoal.optimize.law import Law
from shoal.optimize.learnt import Learnt
from shoal.optimize.mdp import ProblemSource
from shoal.optimize.problem import Problem
from shoal.optimize.purse import PROBES, Purse
from shoal.optimize.truth import Scores
from shoal.run.folder import RunFolder

EPISODES = 30  # of an update, by default
HOPELESS = 10  # updates without a finished episode after which training gives up

# A law must be exact, not only good: the learning rate falls to 1 %, and the policy's spread depends on the state. Actions
# are absolute, so later steps do not depend on them: with gamma above 0, the later steps' noise would be credited to them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "reinforce": {
        "gamma": 0.0,
        # The bonus keeps the policy wide until its mean is right: a narrow policy stays in its current valley.
        "entropy": 0.1,
        "final_entropy": 0.0,
        "final_rate": 0.01,
        "max_grad_norm": 0.5,
        "normalise_reward": True,
    },
    "ppo": {
        "gamma": 0.0,
        "final_rate": 0.01,
        "epochs": 4,
        "batch_size": 64,
        "normalise_reward": True,
        "lam": 1.0,
    },
}
NET = {"hidden": [32, 32], "activation": "tanh", "state_scale": True, "bounded": True}


@dataclass(frozen=True, kw_only=True)
class Usual:
    """Defaults of policy gradients."""

    sampler: str = "random"
    budget: int | None = None  # None: 5,000 updates


def learn(
    problem: Problem,
    *,
    algo: str = "auto",
    sampler: str | None = None,
    drivers: int | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    time_steps: int | None = None,
    runtime: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    quiet: bool = True,
    score: bool = True,
    keep: str | None = None,
    budget: int | None = None,
    started_at: float | None = None,
    settings: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    resume: str | Path | None = None,
    usual: Usual | None = None,
) -> Learnt:
    """Learn a law by policy gradients, `reinforce` or `ppo`; from few evaluations, by `surrogate`; or by `auto`, which chooses.

    `auto` chooses by the budget, the cost of f, and the other arguments (`choice`); unless `quiet`, it says why. If evaluations
    cost next to nothing, it learns by `surrogate` and by `ppo`, and keeps the law that is better on the choosing conditions.

    Policy gradients train for `steps` updates (5,000) of `episodes` episodes of `time_steps` steps (2), shared out among the
    drivers. Episodes begin where the `sampler` says (`random`).

    `drivers` defaults to 1, or to 3 with the sampler `heterogeneous`, which gives each of them another rule. `runtime` defaults to
    `fused` if f can be traced, else `processes`. `episodes` defaults to 30, or the next multiple of the drivers. `settings` are
    further settings of `shoal train`, such as `algo.learning_rate`. `keep` selects the law to keep: the `best` on the choosing
    conditions (`judge`), which is the default, or the `last`. `score` adds the published curve and the regret on the reporting
    conditions, which take evaluations of their own. With `budget` instead of `steps`, training makes as many updates as fit into it
    together with trying f out and choosing.

    `surrogate` takes `budget` (2,000 if it is None), `seed`, `out`, `score`, `data` (a .jsonl or .csv file of earlier evaluations,
    which do not count) and `resume` (the folder of a stopped run, whose evaluations do count; its seed stays, and its budget unless
    another is given); it evaluates f in this process, or, with several `drivers`, in that many others.

    `usual` holds other defaults of policy gradients.

    Raises:
        BadInput: the request cannot be met, or f failed at every point that was tried.
        RunFailed: no episode of the first updates finished.
    """
    began = time.monotonic() if started_at is None else started_at
    usual, why, first, before = usual or Usual(), "", 0, problem.evaluations
    if algo == "auto":
        told: dict[str, Any] = {
            "sampler": sampler,
            "steps": steps,
            "episodes": episodes,
            "time_steps": time_steps,
            "runtime": runtime,
        }
        told |= {"keep": keep, "settings": settings or None}
        wanted = [name for name, value in told.items() if value is not None]
        earlier = {"resumed": resume is not None, "data": data is not None}
        algo, budget, why, first = choose(problem, budget, gradients=wanted, **earlier)
        if algo == frugal.ALGO and problem.traceable and (drivers or 1) > 1:
            drivers, why = 1, f"{why}; one driver, because f is compiled"
    announce = why if not quiet else ""
    if algo == frugal.ALGO:
        how: dict[str, Any] = {"quiet": quiet, "score": score, "data": data, "resume": resume, "started_at": began}
        how |= {"announce": announce, "drivers": 1 if drivers is None else drivers}
        return frugal.learn_frugally(problem, budget=budget, seed=seed, out=out, **how)
    if data is not None or resume is not None:
        raise BadInput(f"algo is {algo!r}: only {frugal.ALGO} uses earlier evaluations, data and resume")
    seed, sampler, keep = seed or 0, sampler or usual.sampler, keep or "best"
    if budget is None and steps is None and usual.budget is not None:
        budget = usual.budget - (problem.evaluations - before)  # less what the choice took
        budget -= first + CHOOSING if first else 0
    steps, time_steps = 5000 if steps is None else steps, 2 if time_steps is None else time_steps
    drivers = (3 if sampler == "heterogeneous" else 1) if drivers is None else drivers
    chosen = runtime or ("fused" if problem.traceable else "processes")
    traced = runtime_of(chosen).needs_pure_env
    actors = 1 if traced else drivers
    episodes = _shared_out(actors) if episodes is None else episodes
    for name, value in (("drivers", drivers), ("steps", steps), ("episodes", episodes), ("time_steps", time_steps)):
        if value < 1:
            raise BadInput(f"{name} is {value}: at least 1")
    if sampler == "heterogeneous" and drivers < 2:
        raise BadInput(f"drivers is {drivers}: the sampler heterogeneous needs at least 2, each with another rule")
    if keep not in KEEP:
        raise BadInput(f"keep is {keep!r}: one of {', '.join(KEEP)}")
    if algo not in DEFAULTS:
        raise BadInput(f"algo is {algo!r}; laws are learnt by one of {', '.join((*DEFAULTS, frugal.ALGO))}, or auto")
    if traced and not problem.traceable:
        raise BadInput(f"runtime {chosen!r} compiles f: {problem.name} is called as {problem.kind}, not traced by JAX")
    if episodes % actors:
        raise BadInput(f"episodes is {episodes}: it must be a multiple of the {actors} drivers, which share them")
    source = ProblemSource(problem, time_steps, sampler, drivers)
    purse = None if budget is None else Purse(problem, budget, episodes, time_steps, keep)

    def plan_of(steps: int) -> Plan:
        base: dict[str, Any] = {
            "algo": {"name": algo, **DEFAULTS[algo], "learning_rate": _rate(steps), "unroll": time_steps},
            "net": NET,
            "runtime": chosen,
            # No overlap: a law's policy becomes narrow, and a narrow policy cannot learn from another one's actions.
            "topology": "sequential" if traced else {"name": "sync", "overlap": False},
            "actors": actors,
            "envs": episodes // actors,
            "steps": steps * episodes * time_steps,
            "seed": seed,
            "eval_episodes": 0,
            "max_faults": 1_000_000,
            "report_every": EVERY,
            "checkpoint_every": 60.0,
            "sinks": ["jsonl"],
        }
        return resolve(source, merge(base, settings or {}))

    plan = plan_of(steps)
    if plan.net.cell != "none" or plan.algo.unroll != time_steps:
        raise BadInput("a law has no memory, and its unrolls are its episodes: leave net.cell and algo.unroll alone")
    source.starts(make_algorithm(plan), plan.actors)  # refuses an unknown sampler before anything is written
    tried = _try_out(problem, PROBES if purse is None else purse.tries)
    if problem.limits:
        most = limits.TRIES if purse is None else purse.spare(tried, limits.TRIES)
        before = problem.evaluations
        source = ProblemSource(limits.penalised(problem, most), time_steps, sampler, drivers)
        tried += problem.evaluations - before  # twice `most` if f raised on arrays
        plan = plan_of(steps)
    if purse is not None:
        plan = plan_of(purse.steps(tried))
    folder = RunFolder.create(out, f"law-{problem.name}", algo, sampler)
    if announce:
        print(announce, file=sys.stderr, flush=True)
    scorer, unscored = _scorer(problem) if score else (None, None)
    chooser = Chooser(problem) if keep == "best" else None
    before = problem.evaluations
    unrivalled = None if chooser is None or not first else _rival(problem, chooser, first, seed, folder, quiet)
    rival = problem.evaluations - before
    finished = Finished(problem, episodes)
    laws = Laws(plan, problem, time_steps)
    watch = Watch(laws.averaged, *(judge for judge in (chooser, scorer) if judge is not None))
    if scorer is not None:
        scorer.judge(0, laws.of(initial_state(plan)))
    outcome = launch.run(plan, out=folder, callbacks=(finished, watch), quiet=quiet, started_at=began).outcome
    if outcome.state is None or outcome.version == 0:
        raise RunFailed(f"{problem.name}: stopped before the first update")
    last, step = watch.last, outcome.version
    if last is None or watch.seen < step:
        last = laws.averaged(outcome.state)
        if chooser is not None:
            chooser.judge(step, last)
    law = last
    if chooser is not None:
        law, step = chooser.kept()
    if law.surrogate is None:
        law.meta["step"] = step
    law.save(folder.path / "law.safetensors")
    before = problem.evaluations
    reporting = reporting_conditions(problem) if score else None
    kept, final = (Reported() if reporting is None else reported(one, reporting) for one in (law, last))
    curves = (scorer.mse, scorer.msle) if scorer is not None else (Scores(), Scores())
    evaluations = outcome.env_steps // time_steps * (time_steps + 1)
    dropped = outcome.version * episodes - finished.count
    learnt = Learnt(law, *curves, evaluations, dropped)
    squares, logs = learnt.mse.summary(), learnt.msle.summary()
    learnt.summary = {
        "function": problem.name,
        "sampler": sampler,
        "drivers": drivers,
        "runtime": plan.settings.runtime,
        "steps": outcome.version,
        "episodes": episodes,
        "evaluations": evaluations,
        "evaluations_of": {
            "probing": problem.probes,
            "trying": tried,
            **({"surrogate": rival} if first else {}),
            "training": evaluations,
            "choosing": chooser.evaluations if chooser is not None else 0,
            "scoring": scorer.evaluations if scorer is not None else 0,
            "reporting": problem.evaluations - before,
        },
        "dropped": dropped,
        "kept": keep if law.surrogate is None else frugal.ALGO,
        "kept_step": step,
        "conditions": {
            "training": f"drawn by {sampler}",
            "choosing": len(choosing_conditions(problem)) if chooser is not None else 0,
            "scoring": len(problem.condition_grid()) if scorer is not None else 0,
            "reporting": 0 if reporting is None else len(reporting),
        },
        "regret": kept.regret,
        "regret_of_last": final.regret,
        "left_out": left_out(curve=unscored, regret=kept.why, surrogate=unrivalled),
        **({"violations": kept.violations, "violations_of_last": final.violations} if problem.limits else {}),
        "setup_s": None if outcome.began_at is None else outcome.began_at - began,
        "wall_s": outcome.wall_s,
        "steps_per_s": outcome.env_steps / outcome.wall_s if outcome.wall_s else None,
        "start_mse": squares.start,
        "first_mse_mean": squares.first_mean,
        "first_mse_var": squares.first_var,
        "last_mse_mean": squares.last_mean,
        "last_mse_var": squares.last_var,
        "best_mse": squares.best,
        "best_msle": logs.best,
        "first_msle_mean": logs.first_mean,
        "first_msle_var": logs.first_var,
        "last_msle_mean": logs.last_mean,
        "last_msle_var": logs.last_var,
        "time": None if traced else {k: outcome.times.get(k, 0.0) for k in ("collect", "learn", "broadcast")},
        "seed": seed,
        "run": str(folder.path),
    }
    folder.write_json(folder.summary_path, learnt.summary)
    return learnt


def _rival(problem: Problem, chooser: Chooser, budget: int, seed: int, folder: RunFolder, quiet: bool) -> str | None:
    """Let the policy gradients' laws compete with one by `surrogate`, in a folder of its own. Returns why there is none."""
    how: dict[str, Any] = {"budget": budget, "seed": seed, "quiet": quiet, "score": False}
    try:
        found = frugal.learn_frugally(problem, out=folder.path / frugal.ALGO, **how)
    except (BadInput, RunFailed) as error:
        return str(error)
    chooser.judge(0, found.law)
    return None


def _rate(steps: int) -> float:
    """The learning rate. A longer run takes smaller steps, so it explores longer before it settles in a valley."""
    return min(3e-3, 15.0 / steps)


def _shared_out(actors: int) -> int:
    return -(-EPISODES // max(1, actors)) * max(1, actors)


def _scorer(problem: Problem) -> tuple[Scorer | None, str | None]:
    """A scorer, or the reason why there is no curve."""
    try:
        return Scorer(problem), None
    except RunFailed as error:
        return None, str(error)


def _try_out(problem: Problem, most: int) -> int:
    """Refuse an f that fails everywhere, before training starts. Returns the evaluations used: one, if the first succeeds."""
    before = problem.evaluations
    for point in problem.sample(np.random.default_rng(0), most):
        if np.isfinite(problem.measure(point[None])[0]).any():
            return problem.evaluations - before
    raise BadInput(f"{problem.name}: all of {most} evaluations failed: {_why(problem)}")


def _why(problem: Problem) -> str:
    return problem.last_error or "it returned a value that is not finite"


class Finished:
    """A callback that counts finished episodes; the others were dropped because f failed."""

    def __init__(self, problem: Problem, episodes: int) -> None:
        self._problem, self._episodes = problem, episodes
        self.count = 0

    def __call__(self, report: Report) -> None:
        self.count += len(report.episodes)
        if not self.count and report.version >= HOPELESS:
            self._problem.evaluate(
                self._problem.sample(np.random.default_rng(1), 1)
            )  # to get an error message here: the drivers keep theirs
            tried = report.version * self._episodes
            raise RunFailed(f"{self._problem.name} failed in all of {tried} episodes: {_why(self._problem)}")


def learn_to_optimize(
    problem: Problem,
    *,
    algo: str = "auto",
    sampler: str | None = None,
    drivers: int | None = None,
    budget: int | None = None,
    runtime: str | None = None,
    seed: int | None = None,
    episodes: int | None = None,
    time_steps: int | None = None,
    keep: str | None = None,
    out: str | Path | None = None,
    quiet: bool = True,
    data: str | Path | None = None,
    resume: str | Path | None = None,
) -> Law:
    """A law for `problem`, learnt with at most `budget` evaluations of f, for all purposes together.

    Unless told, the algorithm is chosen by the budget and the cost of f (`choice`), and the budget is 200,000 for policy gradients,
    2,000 for `surrogate`, or that of the run that is resumed.
    An episode of T steps takes T + 1 evaluations: one at its start and one per step. Probing how f can be called, trying it
    out and choosing the kept law count against the same budget. The sampler, the runtime, `keep` and the episodes belong to policy
    gradients; `surrogate` has none of them, and takes `data` and `resume` as `learn` does. The sampler is `heterogeneous` unless
    told, or `random` if there is one driver.
    """
    learnt = learn(
        problem,
        algo=algo,
        sampler=sampler,
        drivers=drivers,
        budget=budget,
        episodes=episodes,
        time_steps=time_steps,
        runtime=runtime,
        seed=seed,
        out=out,
        quiet=quiet,
        score=False,
        keep=keep,
        data=data,
        resume=resume,
        usual=Usual(sampler="random" if drivers == 1 else "heterogeneous", budget=200_000),
    )
    return learnt.law
