"""Evaluations after training: what they are of, and what is left of them if something goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_envs import Walk

import shoal
from shoal.launch.evaluation import Way
from shoal.run.folder import read_json

STEPS = 96
TINY: dict[str, Any] = {
    "runtime": "inline",
    "topology": "sequential",
    "actors": 1,
    "envs": 4,
    "steps": STEPS,
    "net": {"hidden": (8,)},
    "algo": {"name": "a2c", "unroll": 8},
    "checkpoint_every": 0.0,
    "eval_episodes": 2,
    "sinks": ("jsonl",),
    "quiet": True,
    "report": False,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    return shoal.train(Walk, out=tmp_path_factory.mktemp("evaluations") / "run", **TINY)


def test_an_older_checkpoint_is_evaluated_for_itself(run: shoal.Run) -> None:
    before = run.folder.evaluation_path.read_bytes()
    steps = sorted(int(path.stem.partition("-")[2]) for path in run.folder.checkpoints.glob("step-*.json"))
    assert steps[-1] == STEPS and len(steps) > 1
    older = shoal.load(run.folder.checkpoints / f"step-{steps[0]}.safetensors", Walk)
    assert older.evaluate(3).env_steps == steps[0]
    assert run.folder.evaluation_path.read_bytes() == before, "the file is about the last weights"
    assert run.evaluate(3).env_steps == STEPS and read_json(run.folder.evaluation_path)["greedy"]["env_steps"] == STEPS


def test_episodes_are_not_lost_with_the_disk(
    run: shoal.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(run.folder), "write_json", full)
    assert run.evaluate(2).episodes == 2
    assert "cannot write" in (said := capsys.readouterr().err) and "No space left on device" in said


def test_a_resumed_run_forgets_the_evaluation_of_its_old_weights(tmp_path: Path) -> None:
    run = shoal.train(Walk, out=tmp_path / "run", **TINY)
    assert run.folder.evaluation_path.exists()
    more = {**TINY, "steps": 2 * STEPS, "eval_episodes": 0}
    again = shoal.train(Walk, resume=run.path, **more)
    assert again.summary["env_steps"] == 2 * STEPS and not run.folder.evaluation_path.exists()


def test_an_interrupt_between_the_two_kinds_keeps_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shoal.Run._evaluated

    def greedy_alone(self: Any, way: Way) -> Any:
        if way.sample:
            raise KeyboardInterrupt
        return whole(self, way)

    monkeypatch.setattr(shoal.Run, "_evaluated", greedy_alone)
    run = shoal.train(Walk, out=tmp_path / "run", **TINY)
    assert run.summary["eval_mean"] is not None and run.summary["eval_sampled_mean"] is None
    assert read_json(run.folder.summary_path) == run.summary
