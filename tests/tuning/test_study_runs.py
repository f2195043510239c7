"""Studies of real trainings in processes of their own: what a person sees, and what survives being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shoal
from shoal.process.lock import holder_of
from shoal.run.folder import read_json
from shoal.tuning.events import Lost, Reported
from shoal.tuning.study import Study

Command = Callable[..., subprocess.Popen[str]]
TINY = (
    "--algo",
    "a2c",
    "--backend",
    "jax",
    "--actors",
    "1",
    "--envs",
    "4",
    "--net.hidden",
    "8",
    "--topology",
    "sequential",
)


@pytest.fixture
def command() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`shoal tune WORDS ...` beside the test, which ends it."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        begun.append(_begin(words))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def _begin(words: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shoal", "tune", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def test_a_study_of_trainings(tmp_path: Path) -> None:
    study = shoal.tune(
        "CartPole-v1",
        space={"learning_rate": "log(1e-3,1e-2)", "net.hidden": [(8,), (16, 8)]},
        study=tmp_path / "study",
        trials=2,
        phases=2,
        phase="400steps",
        algo={"name": "a2c", "unroll": 8},
        topology="sequential",
        runtime="inline",
        backend="jax",
        actors=1,
        envs=4,
    )
    assert study.done and study.replay().mismatches == []
    for trial in study.trials:
        config = read_json(study.path / "trials" / f"{trial.number:03d}" / "seed-0" / "config.json")
        assert config["algo"]["learning_rate"] == trial.settings["learning_rate"] and config["algo"]["unroll"] == 8
        assert ",".join(map(str, config["net"]["hidden"])) == str(trial.settings["net.hidden"])
        assert config["steps"] == 800
    page = (study.path / "report.html").read_text()
    assert (
        page.count("<svg") >= 3 and "Which worker trained which trial" in page and "http" not in page.split("<body>")[1]
    )
    assert study.command(study.best).startswith("shoal train CartPole-v1 ")


@pytest.mark.slow
def test_killed_workers_and_drivers_lose_nothing(tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "study"
    words = ("CartPole-v1", *TINY, "--runtime", "inline", "--space", "learning_rate=log(1e-4,1e-1)", "--trials", "3")
    words += ("--phases", "2", "--phase", "20000steps", "--scheduler", "sh", "--workers", "2", "--study", str(folder))
    first = command(*words)
    run = folder / "trials" / "000" / "seed-0"
    until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0, "metrics")
    holder = holder_of(run)
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: any(isinstance(e, Lost) for e in Study.open(folder).course.events), "the loss in the ledger")
    until(lambda: any(isinstance(e, Reported) for e in Study.open(folder).course.events), "a report")
    first.kill()
    first.communicate()
    trained = [path.parent for path in folder.rglob("run.lock") if path.parent != folder]
    until(lambda: all(holder_of(path) is None for path in trained), "the end of the dead driver's runs", 30)
    second = command("--resume", str(folder))
    until(
        lambda: len({e.trial for e in Study.open(folder).course.events if isinstance(e, Reported)}) == 3, "all report"
    )
    second.send_signal(signal.SIGINT)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    third = command("--resume", str(folder), "--json", "--quiet")
    out, err = third.communicate(timeout=200)
    assert third.returncode == 0, err
    told = json.loads(out)
    assert told["done"] and sorted(trial["phases"] for trial in told["trials"]) == [1, 1, 2]
    assert Study.open(folder).replay().mismatches == []
    assert not list(folder.rglob("run.lock"))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["threads", "fused"])
def test_pbt_goes_on_from_another_trials_checkpoint(tmp_path: Path, command: Command, runtime: str) -> None:
    folder = tmp_path / "study"
    words = ("CartPole-v1", *TINY, "--runtime", runtime, "--space", "learning_rate=log(1e-6,1e-1)", "--trials", "5")
    words += (
        "--phases",
        "2",
        "--phase",
        "3000steps",
        "--scheduler",
        "pbt",
        "--study",
        str(folder),
        "--quiet",
        "--seed",
        "3",
    )
    done = command(*words)
    _, err = done.communicate(timeout=280)
    assert done.returncode == 0, err
    study = Study.open(folder)
    assert study.done and study.alpha == 1 and study.replay().mismatches == []
    for trial in study.trials:
        for unit, source in trial.copies:
            home = folder / "trials" / f"{trial.number:03d}" / f"phase-{unit}-from-{source:03d}" / "seed-3"
            lineage, summary = read_json(home / "lineage.json"), read_json(home / "summary.json")
            assert summary["env_steps"] > lineage["done"] and summary["ended"] == "budget"
