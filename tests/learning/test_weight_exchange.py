"""Exchanges of workers with shared weights: which gradients count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.core.program import Context, Fault
from shoal.learning import weight_exchange
from shoal.learning.gradient_steps import Gradient
from shoal.learning.soundness import Watch
from shoal.learning.weight_exchange import Sharded, Unroll

SIZE = 4


class Steps:
    """Five gradients are due; the third stops the update, or is not finite."""

    def __init__(self, stops: bool) -> None:
        self._stops = stops

    def take(self, state: int, *_: Any) -> tuple[int, int]:
        return state, 5

    def gradient(self, state: int, index: int) -> Gradient:
        third = index == 2
        vector = np.full(SIZE, np.nan if third and not self._stops else 1.0, np.float32)
        return Gradient(vector, {}, stop=third and self._stops)


@pytest.mark.parametrize("stops", [True, False])
def test_only_gradients_that_were_sent_are_counted(stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, faults = [], list[Fault]()
    slot = {"gradient": np.zeros(SIZE), "progress": np.zeros(1), "moved": np.zeros(0)}
    stream = SimpleNamespace(
        lanes=1, depth=lambda lane: 0, claim=lambda lane: SimpleNamespace(attempt=lambda: slot), push=sent.append
    )
    table = SimpleNamespace(rows=1, pull=lambda row, size: (0, np.zeros(size, np.float32)))
    layout: Any = SimpleNamespace(
        slice_size=lambda shards: SIZE, size=SIZE, unpack=lambda vector, state: SimpleNamespace(params=vector)
    )
    counting: Any = SimpleNamespace(settle=lambda state, params: state + 1)
    monkeypatch.setattr(weight_exchange, "compiled_steps", lambda algorithm: counting)
    monkeypatch.setattr(weight_exchange, "seen_in", lambda *_: {"seen/rate": 0.1, "seen/weights": 1.0})
    ports: Any = {"weights": table, "gradients-0": stream}
    steps: Any = Steps(stops)
    blueprint: Any = SimpleNamespace(algorithm=None)
    sharded = Sharded(ports, 0, layout, steps, blueprint, Watch(Context(name="worker-0", fault=faults.append)))
    state: Any = 0
    learning = sharded.learn(state, Unroll(None, None, 0, 0.0))  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as end:
        next(learning)
    assert len(sent) == 2 and end.value.value.state == 2
    assert len(faults) == (0 if stops else 1)
