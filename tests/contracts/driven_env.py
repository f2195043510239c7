"""Environments that show which weights acted: every step is an episode, whose return is the action that was preferred.

And a driver that hands in weights which prefer the one action and the other in turn.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from shoal.core.program import Reply, Report
from shoal.core.weights import layout_of, to_vector


class Levers(gymnasium.Env[np.ndarray, Any]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), float(action), True, False, {}


class Dials(Levers):
    """The same for continuous actions: the return says which of two entries was the larger."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[1] > action[0]))


def pulling(lever: int, params: Any) -> np.ndarray:
    """Weights of a policy, or of action values, that always prefer this action."""
    layout, at = layout_of(params), 0
    chosen = np.full(layout.size, 0.25, np.float32)  # so large that what gradients add is lost in rounding
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        size = int(np.prod(shape))
        if name == "policy/head/b" or (shape == (2,) and not name.startswith("value")):
            chosen[at : at + size] = -50.0  # also of a log standard deviation: next to no noise
            chosen[at + lever] = 50.0
        at += size
    return chosen


class Alternating:
    """Hands in the two policies in turn, and notes what came back."""

    def __init__(self) -> None:
        self.returns: dict[int, set[float]] = {}  # by version, of the episodes in the report
        self.handed: dict[int, np.ndarray] = {}
        self.reported: dict[int, np.ndarray] = {}

    def __call__(self, report: Report) -> Reply:
        self.returns.setdefault(report.version, set()).update(episode.ret for episode in report.episodes)
        self.reported[report.version] = to_vector(report.state.params)
        self.handed[report.version] = pulling(report.version % 2, report.state.params)
        return Reply(weights=self.handed[report.version])
