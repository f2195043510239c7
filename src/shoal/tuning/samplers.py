"""Samplers of configurations: `random`, `grid`, Optuna's `tpe` and `cmaes`, or a user's own sampler.

All are Optuna samplers. `random` and `grid` give trial i the same configuration in every study with the same seed, for every
scheduler and in any order, so that schedulers can be compared on equal trials.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from shoal.core.errors import BadInput, nearest
from shoal.envs.registry import import_object
from shoal.tuning.spaces import Choice, Domain, Real, Value, sample

SAMPLERS = ("random", "tpe", "cmaes", "grid")
_MANY = 10_000  # most points of a grid


class Drawn(BaseSampler):
    """A sampler whose settings are a function of the trial's number."""

    def __init__(self, draw: Callable[[int], Mapping[str, Value]], trial: int) -> None:
        self._settings = draw(trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        return self._settings[name]


def make_sampler(
    name: str, space: Mapping[str, Domain], *, seed: int, trial: int, earlier: Sequence[FrozenTrial] = ()
) -> BaseSampler:
    """The sampler for configuration `trial`. It has no state of its own, so a resumed study continues as if never stopped.

    A sampler from an import path may have state: create it once, and keep it for later trials. `earlier` are the trials of a
    warm start, for `cmaes`; other samplers find them in the study.
    """
    own = seed * 1_000_003 + trial  # a stream per trial; otherwise a resumed study would repeat its first draws
    if name == "random":
        return Drawn(lambda number: sample(space, seed=seed, trial=number), trial)
    if name == "grid":
        return Drawn(lambda number: grid(space)[number], trial)
    if name == "tpe":
        return TPESampler(seed=own % 2**32, multivariate=False)
    if name == "cmaes":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return CmaEsSampler(
                seed=own % 2**32,
                independent_sampler=RandomSampler(own % 2**32),
                warn_independent_sampling=False,
                source_trials=_sources(earlier, space),
            )
    return _imported(name, own % 2**32, again=trial > 0)


def _sources(earlier: Sequence[FrozenTrial], space: Mapping[str, Domain]) -> list[FrozenTrial] | None:
    """Complete trials in the form that CMA-ES takes: only ranges, and at least ten, because it starts from the best tenth."""
    ranges = [name for name, domain in space.items() if not isinstance(domain, Choice) and domain.low < domain.high]
    found = [
        create_trial(
            value=trial.value,
            params={name: trial.params[name] for name in ranges},
            distributions={name: trial.distributions[name] for name in ranges},
        )
        for trial in earlier
        if trial.state == TrialState.COMPLETE
    ]
    return found * -(-10 // len(found)) if found else None


def check_sampler(name: str, space: Mapping[str, Domain], trials: int) -> None:
    """Raise `BadInput` for an unknown sampler, one that is not installed, or a grid that does not fit."""
    if name == "grid":
        points = len(grid(space))
        if trials > points:
            raise BadInput(f"--trials is {trials}: the grid of this space has {points} configurations")
    elif name == "cmaes":
        try:
            importlib.import_module("cmaes")
        except ImportError:
            raise BadInput("--sampler cmaes needs a package that is not installed: pip install cmaes") from None
        if all(isinstance(domain, Choice) for domain in space.values()):
            raise BadInput("--sampler cmaes: the space has only lists; it needs a range, such as log(1e-5,1e-2)")
    elif name not in SAMPLERS:
        if ":" not in name:
            words = f"There are: {', '.join(SAMPLERS)}, or an import path pkg.module:Sampler."
            raise BadInput(f"unknown sampler {name!r}.{nearest(name, SAMPLERS)} {words}")
        _imported(name, 0)


def grid(space: Mapping[str, Domain]) -> list[dict[str, Value]]:
    """Every combination of values. `BadInput` for a range of real numbers, which has no grid."""
    axes: list[list[Value]] = []
    count = 1
    for name, domain in space.items():
        if isinstance(domain, Real):
            raise BadInput(f"--sampler grid: {name} is a range of real numbers; list its values, such as {name}=.9,.99")
        values = domain.values if isinstance(domain, Choice) else range(domain.low, domain.high + 1, domain.step)
        axes.append(list(values))
        count *= len(values)
        if count > _MANY:
            raise BadInput(f"--sampler grid: the space has more than {_MANY:,} configurations")
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


def _imported(path: str, seed: int, *, again: bool = False) -> BaseSampler:
    """A sampler, or what a class or function returns; `seed` is passed if its signature takes it.

    Otherwise Optuna reseeds the sampler of a resumed study, so that it does not draw its first configurations `again`.
    """
    try:
        found = import_object(path)
        takes_seed = not isinstance(found, BaseSampler) and "seed" in inspect.signature(found).parameters
        made = found if isinstance(found, BaseSampler) else found(seed=seed) if takes_seed else found()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"cannot make the sampler {path!r}: {error}") from None
    if not isinstance(made, BaseSampler):
        raise BadInput(f"{path!r} is not an Optuna sampler: expected an optuna.samplers.BaseSampler")
    if again and not takes_seed:
        made.reseed_rng()
    return made
