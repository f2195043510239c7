"""Environment steps per second of each child, over the last seconds. No I/O; time is an argument."""

from __future__ import annotations

from collections import deque

SECONDS = 20.0  # window of a rate
MOST = 256  # pushes of a child that are kept: of one that pushes more often, the window is shorter


class Rates:
    """Counts the steps of pushes."""

    def __init__(self) -> None:
        self._pushes: dict[str, deque[tuple[float, int]]] = {}  # by child: (when, steps)

    def add(self, child: str, steps: int, now: float) -> None:
        """Count a push."""
        pushes = self._pushes.setdefault(child, deque(maxlen=MOST))
        pushes.append((now, steps))
        while now - pushes[0][0] > SECONDS:
            pushes.popleft()

    def of(self, child: str, now: float | None = None) -> float:
        """Steps per second of a child before `now`, by default before its last push; 0 if it pushed less than twice."""
        pushes = [one for one in self._pushes.get(child, ()) if now is None or now - one[0] <= SECONDS]
        if len(pushes) < 2:
            return 0.0
        return sum(steps for _, steps in pushes[1:]) / max(1e-9, pushes[-1][0] - pushes[0][0])
