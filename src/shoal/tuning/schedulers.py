"""The schedulers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoal.core.errors import BadInput, nearest
from shoal.envs.registry import import_object
from shoal.tuning.halving import ASHA, SuccessiveHalving, equal_rungs, geometric_rungs
from shoal.tuning.hyperband import HyperBand
from shoal.tuning.hypertrick import HyperTrick
from shoal.tuning.pbt import PBT
from shoal.tuning.scheduler import RunAll, Scheduler


class Budget(NamedTuple):
    """Settings of schedulers; each scheduler reads the ones it needs."""

    trials: int
    phases: int
    eviction: float = 0.25  # HyperTrick: share of trials stopped in each phase
    eta: int = 2  # halving, HyperBand, ASHA: one in `eta` trials is promoted
    seed: int = 0  # PBT: choice of the copied member


SCHEDULERS: dict[str, Callable[[Budget], Scheduler]] = {
    "hypertrick": lambda b: HyperTrick(trials=b.trials, phases=b.phases, eviction=b.eviction),
    "sh": lambda b: SuccessiveHalving(trials=b.trials, rungs=equal_rungs(b.phases), eta=b.eta),
    "hyperband": lambda b: HyperBand(trials=b.trials, units=b.phases, eta=b.eta),
    "asha": lambda b: ASHA(trials=b.trials, rungs=geometric_rungs(b.phases, b.eta), eta=b.eta),
    "pbt": lambda b: PBT(trials=b.trials, units=b.phases, seed=b.seed),
    "none": lambda b: RunAll(trials=b.trials, units=b.phases),
}


def make_scheduler(name: str, budget: Budget) -> Scheduler:
    """Create a scheduler by name, or by the import path pkg.module:Class of one that takes a `Budget`.

    `BadInput` names the nearest scheduler, or the setting that is wrong.
    """
    if ":" in name:
        return _imported(name, budget)
    if name not in SCHEDULERS:
        raise BadInput(f"unknown scheduler {name!r}.{nearest(name, SCHEDULERS)} There are: {', '.join(SCHEDULERS)}.")
    return SCHEDULERS[name](budget)


def _imported(path: str, budget: Budget) -> Scheduler:
    try:
        made: Scheduler = import_object(path)(budget)
        missing = [name for name in ("trials", "units", "copies", "next", "report") if not hasattr(made, name)]
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"cannot make the scheduler {path!r}: {error}") from None
    if missing:
        raise BadInput(f"{path!r} is not a scheduler: it lacks {', '.join(missing)} (shoal.tuning.scheduler.Scheduler)")
    return made
