"""Statistics of returns: mean, spread, interquartile mean, and confidence intervals."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.core.errors import BadInput


class Summary(NamedTuple):
    mean: float
    sd: float  # of the values, not of their mean
    iqm: float  # mean of the middle half: two lucky episodes do not move it
    ci: tuple[float, float] | None  # of the mean, 95 %; None for a single value
    n: int

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "ci": list(self.ci) if self.ci else None}


def iqm(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter."""
    from scipy.stats import trim_mean

    return float(trim_mean(_checked(values), 0.25))


def interval(
    values: Sequence[float],
    statistic: Callable[..., Any] = np.mean,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """A bootstrap interval (bias-corrected and accelerated) of a statistic; None for fewer than two values.

    The same values and seed give the same interval. It is a percentile interval for more than a thousand values, and where BCa is
    undefined: if leaving out any one value does not change the statistic.
    """
    array = _checked(values)
    if array.size < 2:
        return None
    if np.ptp(array) == 0.0:  # nothing to resample
        return float(array[0]), float(array[0])
    bootstrap: Any = importlib.import_module("scipy.stats").bootstrap
    # BCa's jackknife costs one evaluation per value; beyond a thousand the plain percentile is as good and much quicker.
    for method in ("BCa", "percentile") if array.size <= 1000 else ("percentile",):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy's, where BCa is undefined
            result = bootstrap(
                (array,),
                statistic,
                confidence_level=confidence,
                n_resamples=2000,
                batch=100,
                method=method,
                rng=np.random.default_rng(seed),
            )
        low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    raise ArithmeticError(f"the interval of {array.size} values is not finite")


def summarise(returns: Sequence[float]) -> Summary:
    """Summary of the returns of one policy's episodes."""
    array = _checked(returns)
    return Summary(float(array.mean()), float(array.std()), iqm(returns), interval(returns), int(array.size))


def over_seeds(returns: Sequence[Sequence[float]]) -> Summary:
    """Summary of repeated runs, each with its episodes' returns. A seed is one observation, its mean, so more episodes per
    seed do not narrow the interval."""
    if not returns:
        raise BadInput("no seeds to summarise: at least 1")
    return summarise([float(_checked(one).mean()) for one in returns])


def _checked(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not array.size:
        raise BadInput("no returns to summarise: at least 1")
    if not np.isfinite(array).all():
        raise BadInput(f"returns must be finite; {int((~np.isfinite(array)).sum())} of {array.size} are not")
    return array
