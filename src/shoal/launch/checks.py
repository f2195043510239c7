"""`--until-eval`: the newest policy is evaluated beside the training, repeatedly, until it is good enough.

A mean over training episodes is noisy, mixes many policies, and may pass a goal by luck. A check plays fresh episodes of one
policy; three checks in a row must reach the goal, and the policy of the last one is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.errors import BadInput
from shoal.core.keys import CHECKING, key_data
from shoal.core.program import Report
from shoal.experiment import Settings
from shoal.launch.evaluation import EvaluationFailed, Evaluator

EPISODES = 25  # of a check: few enough to be quick, enough to tell a good policy from a lucky one
IN_A_ROW = 3
NICE = 5  # niceness of the process that plays them: training comes first, yet a check ends soon


class Check(NamedTuple):
    """The result of one check."""

    env_steps: int  # of the training, when its policy was taken
    seconds: float
    ret: float  # mean of its episodes


class Checks:
    """Checks of one training, one at a time. Nothing here waits."""

    def __init__(
        self, evaluator: Evaluator, algorithm: Algorithm, settings: Settings, say: Callable[[str], None]
    ) -> None:
        assert settings.until_eval is not None
        self._evaluator, self._algorithm, self._say = evaluator, algorithm, say
        self._goal, self._sample, self._seed = settings.until_eval, settings.until_eval_by == "sampled", settings.seed
        self._number = self._reached = 0
        self._begun: tuple[int, float] | None = None  # (environment steps, seconds) of the policy that plays now
        self._began = self._pause_until = 0.0
        self._given_up = False
        self._last: float | None = None
        self.state: Any = None  # the learner's, of the newest check
        evaluator.start()
        if not evaluator.apart:
            raise BadInput("--until-eval needs an evaluation process beside the training, which cannot be started here")

    @property
    def established(self) -> bool:
        """Whether the last `IN_A_ROW` checks have all reached the goal."""
        return self._reached >= IN_A_ROW

    @property
    def line(self) -> str:
        """A line for the panel."""
        last = "-" if self._last is None else f"{self._last:.1f}"
        way = "sampled" if self._sample else "greedy"
        return f"{way} evaluation {last} (target {self._goal:g}, reached {self._reached} of {IN_A_ROW} times in a row)"

    def look(self, report: Report, env_steps: int, seconds: float) -> Check | None:
        """Begin a check of this report's policy if none is running. Returns the check that has just ended, if any."""
        if self._given_up:
            return None
        try:
            if self._begun is None:
                self._begin(report.state, env_steps, seconds)
                return None
            if not self._evaluator.apart:
                raise EvaluationFailed("the environment cannot be sent to the process that evaluates")
            played = self._evaluator.look()
        except EvaluationFailed as error:
            self._given_up = True
            self._say(f"--until-eval is given up, training continues to its budget: {error}")
            return None
        if played is None:
            return None
        check = Check(*self._begun, float(np.mean(played.returns)))
        self._begun, self._last = None, check.ret
        now = time.monotonic()
        self._reached = self._reached + 1 if check.ret >= self._goal else 0
        # As long as the goal is not reached, pause as long as the check took: half of the time belongs to training alone.
        self._pause_until = now if self._reached else now + (now - self._began)
        return check

    def _begin(self, state: LearnerState, env_steps: int, seconds: float) -> None:
        now = time.monotonic()
        if now < self._pause_until:
            return
        self.state = jax.tree.map(np.array, state)  # a copy: the report's may be memory that workers write to
        seed = int(key_data(self._seed, CHECKING, self._number)[0])
        actor = self._algorithm.actor_state(self.state)
        self._evaluator.begin(actor, EPISODES, sample=self._sample, seed=seed)
        self._begun, self._began, self._number = (env_steps, seconds), now, self._number + 1
