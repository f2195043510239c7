"""Replay of a study's decisions from its ledger, to continue it, and to prove that nothing else influenced them."""

from __future__ import annotations

from typing import NamedTuple

from shoal.core.errors import RunFailed
from shoal.tuning.config import Plan
from shoal.tuning.events import Course, Reported, Settings, Tasked
from shoal.tuning.samplers import grid
from shoal.tuning.scheduler import Scheduler, Task
from shoal.tuning.spaces import explore, sample


class Replay(NamedTuple):
    decisions: int  # repeated calls of the scheduler
    mismatches: list[str]  # a line for each different result
    scheduler: Scheduler  # its state afterwards


def replay(plan: Plan, course: Course) -> Replay:
    """Repeat every call of the scheduler in the ledger's order, and every configuration that a seed determines."""
    scheduler, config = plan.scheduler(), plan.config
    calls, wrong = 0, []
    settings: dict[int, Settings] = {}
    for place, event in enumerate(course.events):
        if isinstance(event, Tasked):
            calls += 1
            task, known = scheduler.next(), Task(event.trial, event.begin, event.end)
            if task != known:
                wrong.append(f"entry {place}: the ledger has {_task(known)}, the rule says {_task(task)}")
            if event.trial not in settings:
                given = course.given(event.trial)
                drawn = (
                    given
                    if given is not None
                    else sample(plan.space, seed=config.seed, trial=event.trial)
                    if config.sampler == "random"
                    else grid(plan.space)[event.trial]
                    if config.sampler == "grid"
                    else event.settings
                )
                if drawn != event.settings:
                    wrong.append(f"entry {place}: trial {event.trial} has {event.settings}, the seed gives {drawn}")
            settings.setdefault(event.trial, event.settings)
        elif isinstance(event, Reported):
            calls += 1
            decision = scheduler.report(event.trial, event.unit, event.value)
            if decision != event.decision:
                wrong.append(f"entry {place}: the ledger has {event.decision}, the rule says {decision}")
            if event.source is not None and event.settings is not None:
                drawn = explore(
                    plan.space,
                    settings[event.source],
                    seed=config.seed,
                    trial=event.trial,
                    unit=event.unit,
                )
                if drawn != event.settings:
                    wrong.append(
                        f"entry {place}: trial {event.trial} explores {event.settings}, the seed gives {drawn}"
                    )
                settings[event.trial] = event.settings
    return Replay(calls, wrong, scheduler)


def rebuilt(plan: Plan, course: Course) -> Scheduler:
    """The scheduler in its state after all events. `RunFailed` if the ledger does not fit this scheduler."""
    found = replay(plan, course)
    if found.mismatches:
        raise RunFailed(f"the study cannot continue, because its ledger does not replay: {found.mismatches[0]}")
    return found.scheduler


def _task(task: Task | None) -> str:
    return "no task" if task is None else f"trial {task.trial} from phase {task.begin} to {task.end}"
