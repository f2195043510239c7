"""The budget of a law that is learnt by policy gradients."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import BadInput
from shoal.optimize.judge import CHOOSING, choosing_evaluations
from shoal.optimize.problem import Problem

PROBES = 64  # consecutive evaluations that may fail before f is refused


@dataclass(frozen=True)
class Purse:
    """A budget of evaluations, divided among probing f's kind, trying f out, training and choosing."""

    problem: Problem
    budget: int
    episodes: int
    time_steps: int
    keep: str

    def __post_init__(self) -> None:
        if self._left(tried=1) < self._update:
            more = self.budget - self._left(tried=1)
            raise BadInput(
                f"budget is {self.budget}: one update takes {self._update} evaluations, and {more} are set aside"
            )

    @property
    def tries(self) -> int:
        """Number of points to try until f succeeds; after more failures the budget would not suffice for one update."""
        return min(PROBES, 1 + (self._left(tried=1) - self._update) // self._calls)

    def spare(self, tried: int, most: int) -> int:
        """Up to `most` further evaluations, a tenth of the budget, that leave room for the first update; at least one."""
        room = (self._left(tried) - self._update) // self._calls
        return max(1, min(most, self.budget // 10, room))

    def steps(self, tried: int) -> int:
        """The largest number of updates that fits."""
        left = self._left(tried)
        steps = left // self._update
        while steps > 1 and steps * self._update + self._choosing(steps) > left:
            steps -= 1
        return steps

    @property
    def _update(self) -> int:
        return self.episodes * (self.time_steps + 1)

    @property
    def _calls(self) -> int:
        """Evaluations of one point: an f that raises on arrays is called again."""
        return 2 if self.problem.kind == "numpy" else 1

    def _choosing(self, steps: int) -> int:
        return choosing_evaluations(self.problem, steps) if self.keep == "best" else 0

    def _left(self, tried: int) -> int:
        """Evaluations left after probing and trying. One is reserved to find out why f fails. With arrays, one batch for
        training and one for choosing are reserved too, because they are evaluated again when f raises for the first time."""
        kept = 1 + (self.episodes + CHOOSING if self.problem.kind == "numpy" else 0)
        return self.budget - self.problem.probes - max(tried, self._calls) - kept
