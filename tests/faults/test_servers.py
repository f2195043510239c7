"""Central inference and GA3C: whoever dies by kill -9 is replaced, and the run goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from driver import LONG, Train, gone, shared_memory, train

SEED = ("--topology", "seed", "--runtime", "processes")
GA3C = (
    *("--topology", "ga3c", "--runtime", "processes", "--algo", "a2c", "--algo.batch-size", "0"),
    *("--topology.adjust", "false", "--topology.predictors", "1", "--topology.trainers", "1"),
)


def roles(run: Train) -> dict[str, int]:
    """{role: process}, from the workers' command lines."""
    found = {}
    for pid in run.workers():
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        if '"name":"' in line:
            found[line.partition('"name":"')[2].partition('"')[0]] = pid
    return found


@pytest.mark.parametrize(
    ("words", "victims"),
    [
        pytest.param(SEED, ("inference", "actor-0"), id="seed"),
        pytest.param(GA3C, ("predictor-0", "actor-1", "trainer-0"), id="ga3c", marks=pytest.mark.slow),
    ],
)
def test_the_killed_are_replaced_and_the_run_goes_on(
    tmp_path: Path, words: tuple[str, ...], victims: tuple[str, ...]
) -> None:
    before = shared_memory()
    with train(tmp_path, *words, "--steps", LONG) as run:
        run.training(500)
        for victim in victims:
            old = roles(run)[victim]
            os.kill(old, signal.SIGKILL)
            run.until(lambda old=old, victim=victim: roles(run).get(victim, old) != old)  # type: ignore[misc]
            steps = run.steps()
            run.until(lambda steps=steps: run.steps() > steps + 640)  # type: ignore[misc]
        assert all(f"{name.split('-')[0]}_died\n{name} was" in run.faults() for name in victims)
        assert "Traceback" not in run.stderr
        tree = run.tree()
        run.signal(signal.SIGTERM)
        assert run.end() == 0 and gone(tree)
    assert shared_memory() <= before
