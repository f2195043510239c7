"""A study as plain data, from which `observe.study_report` draws the report."""

from __future__ import annotations

import math
import warnings
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator

from shoal.run.folder import read_json
from shoal.tuning.distributions import distributions
from shoal.tuning.events import Reported
from shoal.tuning.hypertrick import completion
from shoal.tuning.modelled import measured_panel, modelled, simulated_panel
from shoal.tuning.spaces import Choice, Value, written
from shoal.tuning.study import Study
from shoal.tuning.timeline import clock, pieces_of, seconds_of, to_best_of

FEWEST = 6  # scored trials that importances need


def document_of(study: Study) -> dict[str, Any]:
    """All data of `report.html`."""
    config, course, plan = study.plan.config, study.course, study.plan
    ranked = course.ranked()
    expected = None
    if config.scheduler == "hypertrick":
        expected = completion(trials=config.trials, phases=config.phases, eviction=config.eviction).expected
    return {
        "title": f"{config.env}: {config.trials} trials by {config.scheduler}",
        "source": f"{config.phases} phases of {plan.phase}, {config.workers} workers, {config.seeds_per_trial} "
        f"{'seed' if config.seeds_per_trial == 1 else 'seeds'} per trial, sampler {config.sampler}, seed {config.seed}",
        "done": study.done,
        "alpha": study.alpha,
        "expected": expected,
        "wall_s": seconds_of(course),
        "to_best_s": to_best_of(course),
        "switches": sum(piece.resumed for piece in study.pieces),
        "best": None if not ranked else {**_trial(study, study.best.number), "command": study.command(study.best)},
        "confirmed": [
            {**one._asdict(), "optimism": one.optimism, "optimism_ci": one.optimism_ci, **study.solved(one.trial)}
            for one in study.confirmed
        ],
        "goal": plan.goal,
        "baseline": None if study.baseline is None else study.baseline.plain(),
        "ahead_of_baseline": study.ahead_of_baseline,
        "verdict": study.verdict,
        "optimism": None if study.optimism is None else study.optimism._asdict(),
        "test_seeds": list(plan.test_seeds),
        "space": {name: written(domain) for name, domain in plan.space.items()},
        "settings": config.settings,
        "trials": [_trial(study, trial.number) for trial in study.trials],
        "importance": importances(study),
        "scatter": [_axis(study, name) for name in plan.space],
        "scores": [_scores(study, trial.number) for trial in study.trials if trial.reports],
        "gantt": _gantt(study),
        "machine": read_json(study.path / "study.json").get("machine", {}),
    }


def importances(study: Study) -> dict[str, float]:
    """Importance of each parameter for the score (PED-ANOVA on the newest scores); {} for too few trials."""
    scored = [trial for trial in study.trials if not math.isnan(trial.value)]
    if len(scored) < FEWEST or len({trial.value for trial in scored}) < 2:
        return {}
    known = distributions(study.plan.space)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        whole = optuna.create_study(direction="maximize")
        for trial in scored:
            whole.add_trial(optuna.create_trial(value=trial.value, params=dict(trial.settings), distributions=known))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(
                whole, evaluator=PedAnovaImportanceEvaluator(), normalize=False
            )
    finally:
        optuna.logging.set_verbosity(verbosity)
    total = math.fsum(found.values())
    return {name: share / total for name, share in found.items()} if total > 0 else {}


def _trial(study: Study, number: int) -> dict[str, Any]:
    trial = study.course.trials[number]
    return {
        "trial": number,
        "state": trial.state,
        "phases": trial.unit,
        "value": None if math.isnan(trial.value) else trial.value,
        "spread": trial.spread,
        "settings": trial.settings,
        "why": next((report.why for report in reversed(trial.reports) if report.why), ""),
        "copies": [list(pair) for pair in trial.copies],
        "losses": trial.losses,
    }


def _axis(study: Study, name: str) -> dict[str, Any]:
    domain = study.plan.space[name]
    scored = [trial for trial in study.trials if not math.isnan(trial.value)]
    points: list[tuple[Value, float, int]] = [(trial.settings[name], trial.value, trial.unit) for trial in scored]
    return {
        "name": name,
        "words": [str(value) for value in domain.values] if isinstance(domain, Choice) else None,
        "log": False if isinstance(domain, Choice) else domain.log,
        "x": [str(x) if isinstance(domain, Choice) else float(x) for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "phases": [unit for _, _, unit in points],
    }


def _scores(study: Study, number: int) -> dict[str, Any]:
    course = study.course
    times = zip(clock(course.events), course.events, strict=True)
    points = [
        (at, event.unit, event.value)
        for at, event in times
        if isinstance(event, Reported) and event.trial == number and not math.isnan(event.value)
    ]
    return {"trial": number, "points": [list(point) for point in points], "state": course.trials[number].state}


def _gantt(study: Study) -> dict[str, Any] | None:
    """The measured schedule; below it the simulated one, once the study is done."""
    pieces = pieces_of(study.course)
    if not pieces:
        return None
    found = modelled(study.plan, study.course) if study.done else None
    panels = [measured_panel("" if found is None else "measured", study.plan, pieces)]
    if found is not None:
        panels.append(simulated_panel("simulated with this study's phase times, search only", found))
    return {"panels": panels, "x": "seconds", "y": "worker"}
