"""Learning a law: the problem becomes environments, and the ordinary algorithms, topologies and runtimes do the rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import BadInput, RunFailed
from shoal.core.program import Report
from shoal.experiment import merge, resolve
from shoal.launch.compose import make_algorithm
from shoal.launch.training import Training
from shoal.optimize.law import Law, Weights
from shoal.optimize.mdp import ProblemSource
from shoal.optimize.problem import Problem
from shoal.optimize.truth import Scores, mse, msle, refined
from shoal.roles.parts import named_leaves
from shoal.run.folder import RunFolder

SCORE_EVERY = 10  # training steps between two scores, as the thesis has it
EPISODES = 30  # of an update, unless the user says otherwise
PROBES = 64  # evaluations that may fail, one after another, before f is refused
HOPELESS = 10  # updates without one finished episode after which training gives up

# A law must be exact, not only good: the learning rate falls to nothing, and the policy's spread depends on the state. An
# action is absolute, so what follows does not depend on it: gamma is 0, or the later steps' noise would be blamed on it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "reinforce": {
        "gamma": 0.0,
        # The bonus keeps the policy wide until its mean is right: a narrow one stays in whichever valley it is in.
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


@dataclass
class Learnt:
    """A law, how it came about, and what it cost."""

    law: Law
    mse: Scores
    msle: Scores
    evaluations: int
    dropped: int  # episodes in which f failed
    summary: dict[str, Any] = field(default_factory=dict)


def learn(
    problem: Problem,
    *,
    algo: str = "reinforce",
    sampler: str = "random",
    drivers: int = 1,
    steps: int = 5000,
    episodes: int | None = None,
    time_steps: int = 2,
    runtime: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = True,
    score: bool = True,
    started_at: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Learnt:
    """Train for `steps` updates of `episodes` episodes, shared out among the drivers.

    `fused` where f can be traced, else `processes`; `episodes` is 30, or the next multiple of the drivers; `settings` are
    more of `shoal train`'s, such as `algo.learning_rate`.

    Raises:
        BadInput: what was asked for cannot be done, or f failed wherever it was tried.
        RunFailed: no episode of the first updates came to its end.
    """
    began = time.monotonic() if started_at is None else started_at
    chosen = runtime or ("fused" if problem.traceable else "processes")
    actors = 1 if chosen == "fused" else drivers
    episodes = _shared_out(actors) if episodes is None else episodes
    for name, value in (("drivers", drivers), ("steps", steps), ("episodes", episodes), ("time_steps", time_steps)):
        if value < 1:
            raise BadInput(f"{name} is {value}: at least 1")
    if algo not in DEFAULTS:
        raise BadInput(f"algo is {algo!r}; laws are learnt by one of {', '.join(DEFAULTS)}")
    if chosen == "fused" and not problem.traceable:
        raise BadInput(f"runtime 'fused' compiles f: {problem.name} is called as {problem.kind}, not traced by JAX")
    if episodes % actors:
        raise BadInput(f"episodes is {episodes}: it must be a multiple of the {actors} drivers, which share them")
    source = ProblemSource(problem, time_steps, sampler, drivers)
    base: dict[str, Any] = {
        "algo": {"name": algo, **DEFAULTS[algo], "learning_rate": _rate(steps), "unroll": time_steps},
        "net": NET,
        "runtime": chosen,
        # Without overlap: a narrow policy cannot learn from the actions of another one, and a law's becomes narrow.
        "topology": "sequential" if chosen == "fused" else {"name": "sync", "overlap": False},
        "actors": actors,
        "envs": episodes // actors,
        "steps": steps * episodes * time_steps,
        "seed": seed,
        "eval_episodes": 0,
        "max_faults": 1_000_000,
        "report_every": SCORE_EVERY,
        "checkpoint_every": 60.0,
        "sinks": ["jsonl"],
    }
    plan = resolve(source, merge(base, settings or {}))
    if plan.net.cell != "none" or plan.algo.unroll != time_steps:
        raise BadInput("a law has no memory, and its unrolls are its episodes: leave net.cell and algo.unroll alone")
    source.starts(make_algorithm(plan), plan.actors)  # refuses an unknown sampler before anything is written
    _try_out(problem)
    folder = RunFolder.create(out, f"law-{problem.name}", algo, sampler)
    training = Training(plan, folder, quiet=quiet)
    scorer = Scorer(problem, training) if score else None
    finished = Finished(problem, episodes)
    training.callbacks = (finished,) if scorer is None else (finished, scorer)
    if scorer is not None:
        scorer.score(0, training.parts.initial_state())
    folder.write_config(plan.as_dict())
    outcome = training.run()
    if outcome.state is None:
        raise RunFailed(f"{problem.name}: stopped before the first update")
    law = law_of(training, outcome.state, problem, time_steps)
    law.save(folder.path / "law.safetensors")
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
        "dropped": dropped,
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
        "time": None
        if chosen == "fused"
        else {k: training.times.get(k, 0.0) for k in ("collect", "learn", "broadcast")},
        "seed": seed,
        "run": str(folder.path),
    }
    folder.write_json(folder.summary_path, learnt.summary)
    return learnt


def _rate(steps: int) -> float:
    """A longer run takes smaller steps: it can afford to look longer before it settles on one of several valleys."""
    return min(3e-3, 15.0 / steps)


def _shared_out(actors: int) -> int:
    return -(-EPISODES // max(1, actors)) * max(1, actors)


def _try_out(problem: Problem) -> None:
    """Refuse an f that fails everywhere before anything starts. One evaluation, if that succeeds."""
    points = problem.sample(np.random.default_rng(0), PROBES)
    for some in [points] if problem.traceable else np.split(points, PROBES):
        if np.isfinite(problem.evaluate(some)).any():
            return
    raise BadInput(f"{problem.name}: all of {PROBES} evaluations failed: {_why(problem)}")


def _why(problem: Problem) -> str:
    return problem.last_error or "it returned what is not finite"


class Finished:
    """A callback: counts the episodes that came to their end; the others were dropped because f failed."""

    def __init__(self, problem: Problem, episodes: int) -> None:
        self._problem, self._episodes = problem, episodes
        self.count = 0

    def __call__(self, report: Report) -> None:
        self.count += len(report.episodes)
        if not self.count and report.version >= HOPELESS:
            self._problem.evaluate(
                self._problem.sample(np.random.default_rng(1), 1)
            )  # the drivers' errors stay with them
            tried = report.version * self._episodes
            raise RunFailed(f"{self._problem.name} failed in all of {tried} episodes: {_why(self._problem)}")


class Scorer:
    """A callback: how far f at the law's answers is from searched optima, over the grid of conditions."""

    def __init__(self, problem: Problem, training: Training) -> None:
        self._problem, self._training = problem, training
        self._conditions = problem.condition_grid()
        self._truth = refined(problem, self._conditions)
        self.mse, self.msle = Scores(), Scores()
        self._due = SCORE_EVERY

    def __call__(self, report: Report) -> None:
        for version, state in report.looks or [(report.version, report.state)]:
            if version >= self._due:
                self.score(version, state)
                self._due = version // SCORE_EVERY * SCORE_EVERY + SCORE_EVERY

    def score(self, step: int, state: Any) -> None:
        law = law_of(self._training, state, self._problem, self._training.parts.unroll)
        values = self._problem.evaluate(law.answers(self._conditions).astype(np.float32))
        self.mse.add(step, mse(values, self._truth))
        self.msle.add(step, msle(values, self._truth))


def law_of(training: Training, state: Any, problem: Problem, time_steps: int) -> Law:
    """The law that a learner's state stands for."""
    arrays = named_leaves(training.parts.algorithm.actor_state(state))
    activation = training.plan.net.activation
    own_scale = "params/policy/log_std" in arrays
    meta = {
        "activation": activation,
        "time_steps": time_steps,
        "own_scale": own_scale,
        "bounded": training.plan.net.bounded,
    }
    return Law(problem, Weights.of(arrays, activation), time_steps, meta)


def learn_to_optimize(
    problem: Problem,
    *,
    algo: str = "reinforce",
    sampler: str = "heterogeneous",
    drivers: int = 3,
    budget: int = 200_000,
    runtime: str | None = None,
    seed: int = 0,
    episodes: int | None = None,
    time_steps: int = 2,
    out: str | Path | None = None,
    quiet: bool = True,
) -> Law:
    """A law for `problem`, learnt with at most `budget` evaluations of f.

    An episode of T steps takes T + 1 evaluations: one at its start, one a step.
    """
    if episodes is None:
        traced = runtime == "fused" or (runtime is None and problem.traceable)
        episodes = _shared_out(1 if traced else drivers)
    steps = budget // max(1, episodes * (time_steps + 1))
    if steps < 1:
        raise BadInput(f"budget is {budget}: one update takes {episodes * (time_steps + 1)} evaluations")
    learnt = learn(
        problem,
        algo=algo,
        sampler=sampler,
        drivers=drivers,
        steps=steps,
        episodes=episodes,
        time_steps=time_steps,
        runtime=runtime,
        seed=seed,
        out=out,
        quiet=quiet,
        score=False,
    )
    return learnt.law
