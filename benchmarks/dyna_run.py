"""One CartPole-v1 training per seed: real steps until greedy episodes on the way reach each goal.

Prints one JSON object per line. Runs inline: results depend on the seed alone, never on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

import shoal
from shoal.core.program import Report
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint

GOALS = (195, 475)
CHECKED = 20  # greedy episodes of one check
LOOK = 512  # real steps between two checks
PLAIN = {"runtime": "inline", "sinks": ("jsonl",), "checkpoint_every": 1e9, "keep": 1}


class Judge:
    """A callback that plays greedy episodes until they have reached the last goal."""

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self._act = jax.jit(self._greedy)
        self._next = LOOK
        self._episodes = 0
        self.greedy: dict[int, tuple[int, int]] = {}  # by goal: real steps and episodes
        self.gradients = 0.0

    def __call__(self, report: Report) -> bool:
        self._episodes += len(report.episodes)
        self.gradients = float(report.state.step)
        if report.env_steps >= self._next and GOALS[-1] not in self.greedy:
            self._next += LOOK
            mean = self._check(report.state)
            for goal in GOALS:
                if mean >= goal:
                    self.greedy.setdefault(goal, (report.env_steps, self._episodes))
        return False

    def _greedy(self, actor: Any, obs: Any) -> Any:
        none = np.zeros(CHECKED, np.float32)
        return self._algorithm.act(actor, obs, {}, none > 0, jax.random.key(0), none)[0]

    def _check(self, state: Any) -> float:
        """The mean return of greedy episodes in Gymnasium's own environment."""
        actor = self._algorithm.actor_state(state)
        envs = gymnasium.make_vec("CartPole-v1", CHECKED, vectorization_mode="vector_entry_point")
        obs, _ = envs.reset(seed=90_000)
        playing, total = np.ones(CHECKED, bool), np.zeros(CHECKED)
        while playing.any():
            obs, reward, terminated, truncated, _ = envs.step(np.asarray(self._act(actor, obs)))
            total += np.where(playing, reward, 0.0)
            playing &= ~(terminated | truncated)
        envs.close()
        return float(total.mean())


def run(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Train to the end of the budget; then 100 greedy episodes."""
    settings = {**PLAIN, **settings, "seed": seed, "eval_episodes": 100}
    judge = Judge(make_blueprint(resolve("CartPole-v1", settings), None, None).algorithm)
    folder = Path(tempfile.mkdtemp(prefix="dyna-"))
    try:
        out = folder / "run"
        made = shoal.train("CartPole-v1", out=out, callbacks=[judge], quiet=True, report=False, **settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    summary = made.summary
    return {
        "seed": seed,
        "env_steps": summary["env_steps"],
        "episodes": summary["episodes"],
        "gradients_per_step": judge.gradients / summary["env_steps"],
        "greedy": {goal: judge.greedy.get(goal) for goal in GOALS},
        "eval_mean": summary["eval_mean"],
        "wall_s": summary["wall_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", help="of `shoal train`, as JSON")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    for seed in args.seeds:
        print(json.dumps(run(seed, json.loads(args.settings))), flush=True)


if __name__ == "__main__":
    main()
