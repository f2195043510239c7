"""Warm start: the best configurations of an earlier study are tried first, and its trials inform the sampler.

The search spaces must agree, parameter by parameter. Scores of the two studies are comparable, and inform the sampler, if
environment, settings and phases are the same too; otherwise only the best configurations are taken over.

The earlier study chose those configurations on its seeds, where they look better than they are. So the new study confirms its
winners on other seeds.
"""

from __future__ import annotations

import time
from dataclasses import replace

from shoal.core.errors import BadInput
from shoal.tuning.config import Plan, prepare
from shoal.tuning.events import Course, Settings, Trial, Warmed
from shoal.tuning.race import confirmed
from shoal.tuning.spaces import Space, written

SAME = ("env", "settings", "phase", "phases")  # what makes scores of two studies comparable


def warm_of(plan: Plan, known: Plan, course: Course) -> tuple[Warmed, list[Trial]]:
    """The ledger's first entry, and the earlier trials that inform the sampler.

    `BadInput` names the first parameter whose values differ, or says that no earlier trial has a score.
    """
    source = plan.config.warm_start
    _check_same(source, plan.space, known.space)
    ranked = course.ranked()
    if not ranked:
        raise BadInput(f"--warm-start {source!r}: no trial of that study has a score")
    tested = [course.trials[one.trial] for one in confirmed(known, course)]
    best: list[Settings] = []
    for trial in [*tested, *ranked]:
        if trial.settings not in best:
            best.append(trial.settings)
    count = min(plan.config.warm_trials, plan.config.trials)
    same = all(getattr(plan.config, name) == getattr(known.config, name) for name in SAME)
    informing = ranked if same and plan.config.sampler != "random" else []
    return Warmed(time.time(), source, best[:count], len(informing), used_seeds(known, course)), informing


def used_seeds(known: Plan, course: Course) -> list[int]:
    """Seeds that the trials of this study were chosen on: its own, and those of the studies that it started from."""
    before = [] if course.warmed is None else course.warmed.seeds
    return sorted({*known.tune_seeds, *known.test_seeds, *before})


def fresh_plan(plan: Plan, used: list[int]) -> Plan:
    """The plan with test seeds that the earlier study has not used. `BadInput` if `--test-seed` names used ones."""
    both = sorted({*plan.test_seeds} & {*used})
    if not both:
        return plan
    first = max(*used, *plan.tune_seeds) + 1
    if plan.config.test_seed is None:
        return prepare(replace(plan.config, test_seed=first))
    words = f"test seeds {both[0]} to {both[-1]} were" if len(both) > 1 else f"test seed {both[0]} was"
    where = f"the study of --warm-start {plan.config.warm_start!r}, or by one before it"
    raise BadInput(f"{words} used by {where}: choose --test-seed {first} or above")


def _check_same(source: str, here: Space, there: Space) -> None:
    for name in [*here, *there]:
        if name not in there or name not in here:
            where = "in its study and not here" if name in there else "here and not in its study"
            raise BadInput(f"--warm-start {source!r}: {name} varies {where}; the spaces must be the same")
        if here[name] != there[name]:
            words = f"{name} is {written(there[name])} there and {written(here[name])} here"
            raise BadInput(f"--warm-start {source!r}: {words}; the spaces must be the same")
