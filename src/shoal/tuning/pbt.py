"""Population Based Training (Jaderberg et al., arXiv 1711.09846): the worst members copy the best and perturb their settings.

Exploit is truncation selection: a member in the bottom fraction of the population's latest reports copies checkpoint and settings
of a member in the top fraction. Explore perturbs the copied settings (`spaces.explore`). As published, there is no barrier: a
member that reports is compared with the latest report of every other member.
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
import math
from collections.abc import Mapping, Sequence

from shoal.core.errors import BadInput
from shoal.tuning.scheduler import Decision, Key, Task, at_least, floor, key


def exploit(latest: Mapping[int, tuple[int, float]], member: int, *, fraction: float, seed: int) -> int | None:
    """The member whose checkpoint `member` copies, None to keep its own. `latest`: {member: (unit, value)}."""
    ranked = sorted(latest, key=lambda who: key(who, *latest[who]))  # worst first
    return _source(ranked, ranked.index(member), latest, fraction, seed)


def _source(
    ranked: Sequence[int], rank: int, latest: Mapping[int, tuple[int, float]], fraction: float, seed: int
) -> int | None:
    ends = floor(fraction * len(ranked))
    if rank >= ends:
        return None
    top = [who for who in ranked[len(ranked) - ends :] if not math.isnan(latest[who][1])]
    if not top:
        return None
    member = ranked[rank]
    drawn = hashlib.blake2b(b"%d/%d/%d" % (seed, member, latest[member][0]), digest_size=8).digest()
    return top[int.from_bytes(drawn, "big") % len(top)]


class PBT:
    """A population of `trials` members. With fewer workers, members take turns, the least trained first."""

    copies = True

    def __init__(self, *, trials: int, units: int, fraction: float = 0.2, seed: int = 0) -> None:
        self.trials, self.units = at_least("trials", trials, 1), at_least("units", units, 1)
        if not 0 < fraction <= 0.5:
            raise BadInput(f"fraction is {fraction!r}: expected a number above 0, at most 0.5")
        self.fraction, self.seed = fraction, seed
        self._waiting = [(0, trial) for trial in range(trials)]  # a heap of (units done, trial)
        self._latest: dict[int, tuple[int, float]] = {}
        self._keys: list[Key] = []  # of the latest reports, worst first, and the members they belong to
        self._ranked: list[int] = []
        self._answered: dict[tuple[int, int], Decision] = {}

    def next(self) -> Task | None:
        if not self._waiting:
            return None
        begin, trial = heapq.heappop(self._waiting)
        return Task(trial, begin, begin + 1)

    def report(self, trial: int, unit: int, value: float) -> Decision:
        known = self._answered.get((trial, unit))
        if known is None:
            known = self._answered[trial, unit] = self._enter(trial, unit, value)
        return known

    def _enter(self, trial: int, unit: int, value: float) -> Decision:
        if trial in self._latest:
            at = bisect.bisect_left(self._keys, key(trial, *self._latest[trial]))
            del self._keys[at], self._ranked[at]
        own = key(trial, unit, value)
        rank = bisect.bisect_left(self._keys, own)
        self._keys.insert(rank, own)
        self._ranked.insert(rank, trial)
        self._latest[trial] = (unit, value)
        if unit == self.units:
            return Decision(trial, unit, "complete", unit)
        source = _source(self._ranked, rank, self._latest, self.fraction, self.seed)
        if self._waiting and self._waiting[0][0] < unit:  # a waiting member has trained less: it goes first
            heapq.heappush(self._waiting, (unit, trial))
            return Decision(trial, unit, "pause", unit, source=source)
        return Decision(trial, unit, "continue", unit + 1, source=source)
