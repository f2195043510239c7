"""When a parent's weights are evaluated, and which of them. The evaluator here answers when a test tells it to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from shoal.federation import state as states
from shoal.federation.judging import Judging
from shoal.federation.parent import Parent


class Evaluator:
    """Keeps the first weight of the actor that it plays; `result` ends the evaluation."""

    def __init__(self) -> None:
        self.played: list[float] = []
        self.result: float | None = None

    def begin(self, actor: Any, episodes: int, *, sample: bool, seed: int) -> None:
        self.played.append(float(actor))

    def look(self) -> Any:
        found, self.result = self.result, None
        return None if found is None else SimpleNamespace(returns=[found])


def at(version: int) -> states.State:
    return states.start(np.full(2, version, np.float32))._replace(version=version)


def judging(evaluator: Evaluator, every: int = 0) -> Judging:
    vectors: Any = SimpleNamespace(state=lambda weights, *rest: weights)
    algorithm: Any = SimpleNamespace(actor_state=lambda weights: weights[0])
    return Judging(
        evaluator, algorithm, vectors, lambda state: 0.5, every=every, sample=False, seed=0, say=lambda message: None
    )  # type: ignore[arg-type]


def test_the_same_weights_are_not_evaluated_twice() -> None:
    evaluator = Evaluator()
    one = judging(evaluator)
    assert one.look(at(3), wanted=True) is None and not one.knows(at(3))
    evaluator.result = 7.0
    judged = one.look(at(3), wanted=True)
    assert judged is not None and judged.ret == 7.0 and one.knows(at(3)) and not one.knows(at(4))
    assert one.look(at(3), wanted=True) is None and evaluator.played == [3.0]
    assert one.look(at(4), wanted=True) is None and evaluator.played == [3.0, 4.0]


class Last:
    """The part of a parent that `_last_judgement` uses: its goal is 10."""

    def __init__(self, one: Judging, evaluator: Evaluator, results: list[float]) -> None:
        self._judging, self._results, self._evaluator = one, results, evaluator
        self._serving = SimpleNamespace(call=lambda work: work())
        self._stop = SimpleNamespace(requested=False, why="stopped")
        self.hub, self.kept = SimpleNamespace(state=at(5), stop=False), list[int]()

    def _note(self, judged: Any) -> None:
        self.kept.append(judged.state.version)

    def _over(self, state: Any, judged: Any) -> str:
        return "solved" if judged.ret >= 10 else "budget"

    def _hear(self, seconds: float) -> None:
        if self._results:
            self._evaluator.result = self._results.pop(0)


def test_the_last_weights_are_judged_when_the_budget_is_spent() -> None:
    """An evaluation of earlier weights is under way then: its result is not the last word."""
    for last, said in ((12.0, "solved"), (4.0, "budget")):
        evaluator = Evaluator()
        one = judging(evaluator)
        one.look(at(2), wanted=True)
        parent: Any = Last(one, evaluator, [3.0, last])
        assert Parent._last_judgement(parent) == said
        assert parent.kept == [2, 5] and evaluator.played == [2.0, 5.0] and parent.hub.stop
