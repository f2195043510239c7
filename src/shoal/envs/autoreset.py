"""Autoreset, normalised in one class: a batch of environments as rows of a trajectory slot.

An end at row t leaves the last observation in `obs[t+1]`; row t+1 is the autoreset row (no action was chosen, `valid` is
False) and `obs[t+2]` is the next episode's first. A lost episode (the environment raised, or returned NaN or infinity)
ends at its row with `valid` False, and `obs[t+1]` already is the next episode's first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np

from shoal.core.errors import EnvFault
from shoal.core.trajectory import Array
from shoal.envs.batch import EnvBatch, Startable

RESTARTS = 10  # tries for a first observation that is finite


@contextmanager
def called(inside: Callable[[bool], None]) -> Iterator[None]:
    """Mark a block that calls environments."""
    inside(True)
    try:
        yield
    finally:
        inside(False)


class Rows:
    """Steps a batch and writes the transitions into slots. `obs` and `first` are the inputs of the policy's next action.

    `inside` is called with True before every environment call and with False after it: only that time is watched.
    """

    def __init__(
        self,
        batch: EnvBatch,
        on_fault: Callable[[str, str], None],
        inside: Callable[[bool], None] = lambda inside: None,
    ) -> None:
        self.batch = batch
        self._on_fault, self._inside = on_fault, inside
        self._finite = batch.spec.obs.is_image  # bytes are always finite
        self._ended = np.zeros(batch.size, np.bool_)
        self._any_ended = False
        self._since = np.zeros(batch.size, np.int64)  # the row of this unroll in which the running episode began
        self._begun = False
        self.obs: Array = np.zeros((batch.size, *batch.spec.obs.shape), batch.spec.obs.dtype)
        self.first: np.ndarray = np.ones(batch.size, np.bool_)

    def begin(self, slot: Mapping[str, np.ndarray], fresh: bool = False, starts: np.ndarray | None = None) -> None:
        """Write row 0's observation. `fresh` begins new episodes in every environment first, at `starts` if given."""
        if fresh or not self._begun:
            self._reset(starts)
        self._since[:] = 0
        slot["obs"][0] = self.obs
        # Most rows neither end an episode nor follow an end: write their values here once; `step` writes the exceptions.
        slot["boundary"].fill(False)
        slot["discount"].fill(1)
        slot["valid"].fill(True)
        slot["first"].fill(False)
        slot["first"][0] = self.first

    def step(self, slot: Mapping[str, np.ndarray], t: int, action: Array) -> None:
        """Step all environments; write row t and the observation of row t+1."""
        with called(self._inside):
            out = self.batch.step(action)
        self.obs = np.asarray(out.obs)
        reward, dropped = np.asarray(out.reward), np.asarray(out.dropped)
        was_ended = self._ended
        terminated = np.asarray(out.terminated)
        ended = terminated | np.asarray(out.truncated)
        slot["obs"][t + 1] = self.obs
        slot["action"][t] = action
        slot["reward"][t] = reward
        any_ended, any_was_ended = bool(ended.any()), self._any_ended
        if any_ended or any_was_ended:
            slot["boundary"][t] = ended
            slot["discount"][t] = ~(terminated | was_ended)
            slot["valid"][t] = ~was_ended
            slot["first"][t + 1] = was_ended
            self._since[was_ended] = t + 1
        if out.cut is not None:
            slot["discount"][t][np.asarray(out.cut)] = 0
        self.first = was_ended
        self._ended, self._any_ended = ended, any_ended
        if dropped.any():
            self._drop(slot, t, dropped)
        if not self._all_finite(reward):
            self._forget(slot, t)
        if self.batch.faults:
            self._report_faults()

    def snapshot(self) -> dict[str, np.ndarray]:
        """The state that `restore` needs, taken between two unrolls; {} if the batch cannot be saved."""
        inner = self.batch.snapshot()
        if not inner or not self._begun:
            return {}
        own = {"obs": np.array(self.obs), "first": self.first.copy(), "ended": self._ended.copy()}
        return {**own, **{f"batch/{name}": array for name, array in inner.items()}}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue where `snapshot` was taken; with {} new episodes begin."""
        if not arrays:
            return
        with called(self._inside):
            self.batch.restore({n.removeprefix("batch/"): a for n, a in arrays.items() if n.startswith("batch/")})
        self.obs, self.first = np.array(arrays["obs"]), np.array(arrays["first"])
        self._ended = np.array(arrays["ended"])
        self._any_ended = bool(self._ended.any())
        self._begun = True
        self._report_faults()

    def close(self) -> None:
        self.batch.close()

    def _reset(self, starts: np.ndarray | None) -> None:
        begin = self.batch.reset if starts is None else partial(self._startable().begin_at, starts)
        with called(self._inside):
            self.obs = np.asarray(begin())
        self._ended, self._any_ended = np.zeros(self.batch.size, np.bool_), False
        self.first = np.ones(self.batch.size, np.bool_)
        self._begun = True
        for index in np.flatnonzero(self._not_finite()):
            self._replace(int(index), "its first observation")
        self._report_faults()

    def _startable(self) -> Startable:
        if not isinstance(self.batch, Startable):
            raise EnvFault(f"environment {self.batch.spec.name!r} cannot begin an episode at a given start")
        return self.batch

    def _drop(self, slot: Mapping[str, np.ndarray], t: int, lost: np.ndarray) -> None:
        """Mark row t's episode as lost where `lost`; `obs` already holds the first observation of the next."""
        slot["reward"][t][lost] = 0
        slot["discount"][t][lost] = 0
        slot["boundary"][t][lost] = True
        slot["valid"][t][lost] = False
        slot["first"][t + 1][lost] = True
        self.first = self.first | lost
        self._ended = self._ended & ~lost
        self._since[lost] = t + 1

    def _forget(self, slot: Mapping[str, np.ndarray], t: int) -> None:
        """Handle NaN or infinity: no row of the running episode in this unroll may be learnt from."""
        bad = self._not_finite() | ~np.isfinite(slot["reward"][t])
        for index in np.flatnonzero(bad):
            slot["valid"][self._since[index] : t, index] = False
            what = "its reward" if not np.isfinite(slot["reward"][t, index]) else "its observation"
            self._replace(int(index), what)
        self._drop(slot, t, bad)
        slot["obs"][t + 1] = self.obs

    def _all_finite(self, reward: np.ndarray) -> bool:
        """Whether all values are finite. A finite sum of squares proves it; otherwise every value is checked."""
        flat = self.obs.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = reward.dot(reward) + (0.0 if self._finite else flat.dot(flat))
        if math.isfinite(squares):
            return True
        return bool(np.isfinite(reward).all() and (self._finite or np.isfinite(self.obs).all()))

    def _not_finite(self) -> np.ndarray:
        if self._finite:
            return np.zeros(self.batch.size, np.bool_)
        return np.asarray(~np.isfinite(self.obs.reshape(self.batch.size, -1)).all(axis=1))

    def _replace(self, index: int, what: str) -> None:
        """Restart environment `index` until its first observation is finite."""
        name = self.batch.spec.name
        self.obs = np.array(self.obs)  # the batch's own array may be read-only
        for _ in range(RESTARTS):
            self._on_fault("env_nan", f"environment {index} of {name}: {what} was not finite; the episode was dropped")
            with called(self._inside):
                self.obs[index] = self.batch.restart(index)
            if np.isfinite(self.obs[index]).all():
                return
        raise EnvFault(
            f"environment {name!r} began {RESTARTS} episodes in a row with an observation that is not finite"
        )

    def _report_faults(self) -> None:
        faults = list(self.batch.faults)
        self.batch.faults.clear()
        for kind, detail in faults:
            self._on_fault(kind, detail)
