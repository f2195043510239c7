"""The outcome of a training: its counts and figures, and the part of them that a checkpoint holds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.core.program import Ended
from shoal.launch.checks import Check

WINDOW = 100  # episodes behind the mean return


@dataclass
class Outcome:
    """The outcome of a training. Times count from the first environment step."""

    state: Any = None
    version: int = 0
    env_steps: int = 0
    episodes: int = 0  # finished ones
    began_at: float | None = None  # on the monotonic clock
    wall_s: float = 0.0
    solved_at_s: float | None = None
    ended: Ended = "budget"  # why training ended
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    reports: int = 0
    lag_sum: float = 0.0  # of the reports' means
    lag_max: float = 0.0
    # {age of the acting weights in versions: rows learnt from}
    histogram: Counter[int] = field(default_factory=Counter)
    faults: int = 0
    times: dict[str, float] = field(default_factory=dict)  # total seconds by metric `time/...`
    checks: deque[Check] = field(default_factory=lambda: deque(maxlen=WINDOW))  # the last ones, of --until-eval
    bad_updates: int = 0  # dropped because some value was not finite

    @property
    def stopped(self) -> bool:
        """Whether it ended on request, before the budget was spent or the goal was reached."""
        return self.ended in ("stopped", "paused", "pruned")

    @property
    def return_mean(self) -> float | None:
        return float(np.mean(self.recent)) if self.recent else None

    @property
    def score(self) -> float | None:
        """The mean return once its window is full; the best checkpoint is chosen by it."""
        return self.return_mean if len(self.recent) == WINDOW else None

    def learnt_steps(self, fresh: bool) -> int:
        """Environment steps that were learnt from: without lost or dropped unrolls, and those that are read again count once.

        Unless unrolls begin with `fresh` episodes, the step after the end of an episode only resets the environment.
        """
        if not self.env_steps:
            return 0
        rows = min(self.env_steps, self.histogram.total()) if self.histogram else self.env_steps
        resets = 0 if fresh else self.episodes
        return rows - round(resets * rows / self.env_steps)

    def counts(self) -> dict[str, Any]:
        """The counts in the form in which a checkpoint holds them."""
        return {
            "version": self.version,
            "env_steps": self.env_steps,
            "seconds": self.wall_s,
            "episodes": self.episodes,
            "faults": self.faults,
            "bad_updates": self.bad_updates,
            "reports": self.reports,
            "lag_sum": self.lag_sum,
            "lag_max": self.lag_max,
            "lags": {str(lag): count for lag, count in self.histogram.items()},
        }

    def restore(self, counts: Mapping[str, Any], recent: Iterable[float]) -> None:
        """Continue from the counts and the recent returns of a checkpoint. Counts that it lacks stay as they are."""
        self.version = int(counts["version"])
        self.env_steps = int(counts["env_steps"])
        self.wall_s = float(counts.get("seconds", self.wall_s))
        self.episodes = int(counts.get("episodes", self.episodes))
        self.faults = int(counts.get("faults", self.faults))
        self.bad_updates = int(counts.get("bad_updates", self.bad_updates))
        self.reports = int(counts.get("reports", self.reports))
        self.lag_sum = float(counts.get("lag_sum", self.lag_sum))
        self.lag_max = float(counts.get("lag_max", self.lag_max))
        self.histogram.update({int(lag): count for lag, count in counts.get("lags", {}).items()})
        self.recent.extend(recent)
