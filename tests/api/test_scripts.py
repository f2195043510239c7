"""Whole scripts, as users write them: without a `__main__` guard, and where standard streams are no files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENV = """
import gymnasium, numpy as np, shoal


class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action), False, self.steps == 5, {}

"""
TRAIN = """
print("once", flush=True)
run = shoal.train(
    Mine, runtime="processes", actors=2, envs=2, steps=2 * 2 * 8 * 3, algo={"name": "a2c", "unroll": 8},
    net={"hidden": (8,)}, eval_episodes=2, sinks=("jsonl",), out="run",
)
assert run.summary["updates"] == 3 and run.summary["faults"] == 0, run.summary
assert run.policy(np.zeros(2, np.float32)) in (0, 1)
"""
NOTEBOOK = '''
class Cell:
    """What a notebook puts in the place of standard output: it has no file."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return False


import sys
sys.stdout, sys.stderr = Cell(), Cell()
'''


def play(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    src = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(src)}
    return subprocess.run([sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True)


def workers(folder: Path) -> list[str]:
    """Processes that still run in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if Path(os.readlink(path)) == folder:
                found.append(path.parent.name)
        except OSError:
            continue  # it ended meanwhile, or is another user's
    return found


@pytest.mark.parametrize("where", ["terminal", pytest.param("notebook", marks=pytest.mark.slow)])
def test_a_script_without_a_guard_trains_in_processes(where: str, tmp_path: Path) -> None:
    done = play(tmp_path, ENV + (NOTEBOOK if where == "notebook" else "") + TRAIN)
    assert done.returncode == 0, done.stderr
    if where == "terminal":
        assert done.stdout.splitlines().count("once") == 1, "the workers do not run the script again"
        assert "written in Python" not in done.stderr, "the runtime was named, so there is nothing to explain"
    assert (tmp_path / "run" / "report.html").exists()
    deadline = time.monotonic() + 60
    while workers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers(tmp_path)


def test_importing_is_quick_and_starts_nothing(tmp_path: Path) -> None:
    done = play(
        tmp_path, 'import sys, shoal\nassert shoal.__version__\nprint(sorted({"jax", "gymnasium"} & set(sys.modules)))'
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
