"""Actors that replace others do not meet the same fate, and a policy that is stuck does not play for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faulty_env import Cursed, Endless

import shoal
from shoal.envs.batch import seed_of

TINY: dict[str, Any] = {
    "algo": {"name": "a2c", "unroll": 8},
    "net": {"hidden": (8,)},
    "envs": 2,
    "sinks": ("jsonl",),
    "quiet": True,
    "report": False,
}


def test_an_episode_that_ends_an_actor_does_not_end_its_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURSED", str(seed_of(0, 0, 0, 1)))  # the second episode of the first environment
    where: dict[str, Any] = {"topology": "sync", "runtime": "processes", "actors": 2}
    run = shoal.train(Cursed, out=tmp_path / "run", steps=1280, eval_episodes=0, max_faults=3, **where, **TINY)
    assert run.summary["ended"] == "budget" and run.summary["faults"] == 1
    assert "exited with code 1" in (run.path / "faults.log").read_text()


def test_episodes_that_never_end_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where: dict[str, Any] = {"topology": "sequential", "runtime": "inline", "actors": 1}
    run = shoal.train(Endless, out=tmp_path / "run", steps=64, eval_episodes=3, eval_limit=50, **where, **TINY)
    assert run.summary["eval_mean"] == run.summary["eval_sampled_mean"] == 50.0
    told = [line for line in capsys.readouterr().err.splitlines() if "were cut" in line]
    ways = [f"3 of 3 {way} episodes were cut after 50 steps (--eval-limit)" for way in ("greedy", "sampled")]
    assert len(told) == 2 and all(words in line for words, line in zip(ways, told, strict=True))
