"""Episodes of a fixed policy in Gymnasium's own environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.algorithm import Algorithm
from shoal.core.device import settle_process
from shoal.core.errors import EnvFault, ShoalError
from shoal.experiment import Plan
from shoal.roles.evaluator import Played, play


def evaluate(
    plan: Plan,
    algorithm: Algorithm,
    actor: Any,
    episodes: int,
    *,
    sample: bool,
    seed: int,
    on_episode: Callable[[float], None],
) -> Played:
    """Episodes in Gymnasium's own environment."""
    settle_process()
    try:
        return play(algorithm, actor, plan.source.single, episodes, sample=sample, seed=seed, on_episode=on_episode)
    except ShoalError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise EnvFault(
            f"environment {plan.source.name!r} failed in evaluation: {type(error).__name__}: {reason}"
        ) from error
