"""One CartPole-v1 training, judged on the way: real steps until the training mean and until greedy episodes reach each goal.

Prints one JSON object a seed. Runs inline, so that what it finds depends on the seed and not on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

import shoal
from shoal.core.program import Report

GOALS = (195, 475)
WINDOW = 100  # training episodes of the mean
CHECKED = 20  # greedy episodes of one check on the way
LOOK = 512  # real steps between two checks


class Judge:
    """A callback: follows the training mean, and plays greedy episodes now and then until the highest goal is reached."""

    def __init__(self, until: float, checks: bool) -> None:
        self._until = until
        self._checks = checks
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._next = LOOK
        self.episodes = 0
        self.by_mean: dict[int, tuple[int, int]] = {}
        self.by_greedy: dict[int, tuple[int, int]] = {}
        self.curve: list[tuple[int, float]] = []
        self.told: dict[str, float] = {}
        self._play = jax.jit(self._greedy)

    def bind(self, algorithm: Any) -> None:
        self._algorithm = algorithm

    def _greedy(self, actor: Any, obs: Any) -> Any:
        zero = np.zeros(obs.shape[0], np.float32)
        return self._algorithm.act(actor, obs, {}, zero > 0, jax.random.key(0), zero)[0]

    def __call__(self, report: Report) -> bool:
        self.episodes += len(report.episodes)
        self._recent.extend(episode.ret for episode in report.episodes)
        self.told = report.metrics
        at = (report.env_steps, self.episodes)
        if len(self._recent) == WINDOW:
            mean = float(np.mean(self._recent))
            for goal in GOALS:
                if mean >= goal:
                    self.by_mean.setdefault(goal, at)
        if self._checks and report.env_steps >= self._next and max(GOALS) not in self.by_greedy:
            self._next += LOOK
            mean = self._check(report.state)
            self.curve.append((report.env_steps, round(mean, 1)))
            for goal in GOALS:
                if mean >= goal:
                    self.by_greedy.setdefault(goal, at)
        return False

    def _check(self, state: Any) -> float:
        """The mean return of greedy episodes in Gymnasium's own environment."""
        actor = self._algorithm.actor_state(state)
        envs = gymnasium.make_vec("CartPole-v1", CHECKED, vectorization_mode="vector_entry_point")
        obs, _ = envs.reset(seed=90_000)
        alive, total = np.ones(CHECKED, bool), np.zeros(CHECKED)
        while alive.any():
            obs, reward, terminated, truncated, _ = envs.step(np.asarray(self._play(actor, obs)))
            total += np.where(alive, reward, 0.0)
            alive &= ~(terminated | truncated)
        envs.close()
        return float(total.mean())


def run(algo: dict[str, Any], seed: int, until: float | None, checks: bool, episodes: int, **settings: Any) -> dict[str, Any]:
    """Train once, to a training mean of `until` or to the end of the budget, and play greedy episodes with the result."""
    judge = Judge(until or np.inf, checks)
    folder = Path(tempfile.mkdtemp(prefix="dyna-"))
    plain: dict[str, Any] = {"runtime": "inline", "sinks": ("jsonl",), "checkpoint_every": 1e9, "keep": 1}
    try:
        from shoal.experiment import resolve
        from shoal.launch.compose import make_parts

        named = {**plain, "algo": algo, "seed": seed, "until_return": until, "eval_episodes": episodes, **settings}
        judge.bind(make_parts(resolve("CartPole-v1", named), None, None).algorithm)
        made = shoal.train("CartPole-v1", out=folder / "run", callbacks=[judge], quiet=True, report=False, **named)
        summary = made.summary
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    real = judge.told.get("replay/gradients", 0.0)
    return {
        "algo": algo["name"],
        "seed": seed,
        "env_steps": summary["env_steps"],
        "episodes": summary["episodes"],
        "gradients_per_step": real / summary["env_steps"],
        "mean": {goal: judge.by_mean.get(goal) for goal in GOALS},
        "greedy": {goal: judge.by_greedy.get(goal) for goal in GOALS},
        "eval_mean": summary.get("eval_mean"),
        "wall_s": summary["wall_s"],
        "curve": judge.curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", help="JSON: algo, net, steps, ...")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--until", type=float)
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    for seed in args.seeds:
        found = run(seed=seed, until=args.until, checks=not args.no_checks, episodes=args.episodes, **json.loads(args.settings))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
