"""Search spaces as Optuna distributions."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from shoal.tuning.spaces import Domain, Real, Whole


def distributions(space: Mapping[str, Domain]) -> dict[str, BaseDistribution]:
    """Distributions for `study.ask(fixed_distributions=...)`, with the same values and probabilities as `spaces.draw`."""
    found: dict[str, BaseDistribution] = {}
    for name, domain in space.items():
        if isinstance(domain, Real):
            found[name] = FloatDistribution(domain.low, domain.high, log=domain.log)
        elif isinstance(domain, Whole):
            found[name] = IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
        else:
            found[name] = CategoricalDistribution(domain.values)
    return found
