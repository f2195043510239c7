"""The evaluator: the same bits in a process of its own as here, and which renderers are tried."""

from __future__ import annotations

import sys
import threading
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from shoal.experiment import resolve
from shoal.launch import evaluation
from shoal.launch.compose import make_algorithm
from shoal.launch.evaluation import EvaluationFailed, Evaluator, backends


class Wobbly(gymnasium.Env[np.ndarray, int]):
    """Twenty steps that depend on seed and actions; `lock` cannot be pickled."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, lock: Any = None, raises: bool = False) -> None:
        self._raises = raises

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._t += 1
        if self._raises and self._t > 5:
            raise RuntimeError("lost")
        obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return obs, float(obs[action]), self._t >= 20, False, {}


def plan(make: Any, **more: Any) -> Any:
    return resolve(make, {"runtime": "inline", "actors": 1, "envs": 1, "net": {"hidden": (8,)}, **more})


def actor(of: Any) -> Any:
    algorithm = make_algorithm(of)
    return algorithm.actor_state(jax.jit(algorithm.init)(jax.random.key(1)))


def test_here_or_in_a_process_of_its_own_the_bits_are_the_same() -> None:
    lock, said = threading.Lock(), []
    apart, here = plan(lambda: Wobbly()), plan(lambda: Wobbly(lock))
    with Evaluator(apart) as process, Evaluator(here, say=said.append) as inside:
        for sample in (False, True):
            there = process.play(actor(apart), 20, sample=sample, seed=5)
            assert there == inside.play(actor(here), 20, sample=sample, seed=5)
            assert len(set(there.returns)) == 20 and set(there.lengths) == {20}
        assert process.apart and not inside.apart
    [line] = said
    assert line.startswith("evaluation runs in the main process") and "pickle" in line


@pytest.mark.parametrize("cores", [1, 2])
def test_greedy_and_sampled_episodes_side_by_side_are_those_of_one_after_the_other(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "LONG", 1e-9)  # every evaluation is long
    monkeypatch.setattr(evaluation, "cores", lambda: cores)
    made, called = plan(lambda: Wobbly()), []
    with Evaluator(made) as evaluator:
        both = list(evaluator.play_both(actor(made), 40, seed=5, on_episode=called.append))
        assert [way.sample for way in both] == [False, True] and len(called) == 80
        for sample, played, faults in both:
            assert played == evaluator.play(actor(made), 40, sample=sample, seed=5) and faults == 0


def test_faults_side_by_side_are_counted_and_the_greedy_result_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "LONG", 1e-9)
    monkeypatch.setattr(evaluation, "cores", lambda: 2)
    broken, faults = plan(lambda: Wobbly(), max_faults=4), []
    with Evaluator(broken, on_fault=faults.append) as evaluator:
        both = evaluator.play_both(actor(broken), 40, seed=5)
        second = Evaluator.begin

        def begin(self: Any, *words: Any, sample: bool, **more: Any) -> None:
            if sample:
                self._stage = replace(self._stage, source=plan(lambda: Wobbly(raises=True)).source)
            second(self, *words, sample=sample, **more)

        monkeypatch.setattr(Evaluator, "begin", begin)
        greedy = next(both)
        assert not greedy.sample and len(greedy.played.returns) == 40 and greedy.faults == 0
        with pytest.raises(EvaluationFailed, match="5 faults in evaluation"):
            next(both)
        assert [fault.kind for fault in faults] == ["env_raised"] * 5 and evaluator.faults == 5


def test_what_only_this_process_can_import_is_played_here(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = types.ModuleType("nowhere_on_disk")
    nowhere.Wobbly = type("Wobbly", (Wobbly,), {"__module__": "nowhere_on_disk"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nowhere_on_disk", nowhere)
    said: list[str] = []
    made = plan(nowhere.Wobbly)  # type: ignore[attr-defined]
    with Evaluator(made, say=said.append) as evaluator:
        assert [len(way.played.returns) for way in evaluator.play_both(actor(made), 2, seed=0)] == [2, 2]
    [line] = said
    assert "cannot be sent to another one (ModuleNotFoundError: No module named 'nowhere_on_disk')" in line


def test_here_too_an_environment_that_raises_is_counted_until_it_is_too_much() -> None:
    lock, faults = threading.Lock(), []
    broken = plan(lambda: Wobbly(lock, raises=True), max_faults=4)
    with (
        Evaluator(broken, on_fault=faults.append) as evaluator,
        pytest.raises(EvaluationFailed, match=r"5 faults in evaluation, more than --max-faults 4.*0 of 3 episodes"),
    ):
        evaluator.play(actor(broken), 3, sample=False, seed=0)
    assert [fault.kind for fault in faults] == ["env_raised"] * 5 and evaluator.faults == 5


@pytest.mark.parametrize(
    ("variables", "tried"),
    [
        ({}, ("egl", "osmesa")),
        ({"DISPLAY": ":0"}, (None,)),
        ({"MUJOCO_GL": "osmesa"}, (None,)),
    ],
    ids=["no display", "a display", "the user's choice"],
)
def test_renderers_without_a_display(
    variables: dict[str, str], tried: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert backends(variables) == tried


@pytest.mark.slow
def test_mujoco_is_filmed_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    from shoal.observe.video import record

    cheetah = plan("HalfCheetah-v5", backend="gymnasium")
    with Evaluator(cheetah, record=record) as evaluator:
        assert len(evaluator.play(actor(cheetah), 1, sample=False, seed=0).returns) == 1
        assert evaluator.film(actor(cheetah), seed=0, max_steps=2, seconds=60)[4:8] == b"ftyp"
