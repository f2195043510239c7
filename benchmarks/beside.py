"""Is a checkout slower than another? The same short trainings by both, in turns, on an idle machine.

    python benchmarks/beside.py BEFORE AFTER [--rounds 5] [--only fused]   # folders of source checkouts; about ten minutes

Prints the median steps/s of each, their range and the ratio AFTER / BEFORE. The commands give every
setting that matters for speed, so that tuned defaults that differ do not count. Each checkout has a cache of its own,
and a first round that fills it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from idle import OtherWork, wait_until_idle

PPO = "--algo ppo --algo.unroll 64 --algo.batch-size 256 --algo.epochs 4 --net.hidden 64,64 --net.activation relu"
A2C = "--algo a2c --algo.unroll 32 --net.hidden 64,64 --net.activation relu"
DQN = "--algo dqn --algo.unroll 8 --algo.batch-size 128 --algo.every 4 --algo.capacity 65536 --algo.warmup 2000 --net.hidden 64,64"
RUNS = {
    "ppo, sync": f"LunarLander-v3 {PPO} --topology sync --actors 2 --envs 32 --steps 300000",
    "ppo, processes": f"LunarLander-v3 {PPO} --topology sync --runtime processes --actors 2 --envs 32 --steps 300000",
    "ppo, actor_learner": f"LunarLander-v3 {PPO} --topology actor_learner --actors 2 --envs 32 --steps 300000",
    "ppo, seed": f"LunarLander-v3 {PPO} --topology seed --actors 2 --envs 32 --steps 200000",
    "a2c, shared_params": f"LunarLander-v3 {A2C} --topology shared_params --actors 2 --envs 16 --algo.batch-size 0 --steps 300000",
    "dqn, sync": f"LunarLander-v3 {DQN} --topology sync --actors 1 --envs 32 --steps 100000",
    "ppo, fused": f"CartPole-v1 {PPO} --runtime fused --envs 128 --steps 3000000",
    "a2c, fused": f"CartPole-v1 {A2C} --runtime fused --envs 128 --steps 5000000",
}


def run(checkout: Path, cache: Path, words: str) -> float:
    """The steps/s of one training."""
    variables = {**os.environ, "PYTHONPATH": str(checkout / "src"), "SHOAL_CACHE": str(cache)}
    with TemporaryDirectory() as folder:
        flags = ["--quiet", "--json", "--no-report", "--eval-episodes", "0", "--seed", "0", "--out", f"{folder}/run"]
        command = [sys.executable, "-m", "shoal", "train", *words.split(), *flags]
        done = subprocess.run(command, env=variables, cwd=folder, stdout=subprocess.PIPE, check=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["steps_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="trainings whose name contains this")
    words = parser.parse_args()
    checkouts = {"before": words.before.resolve(), "after": words.after.resolve()}
    wait_until_idle()
    other = OtherWork()
    with TemporaryDirectory() as scratch:
        for title, command in RUNS.items():
            if words.only not in title:
                continue
            found: dict[str, list[float]] = {name: [] for name in checkouts}
            for number in range(words.rounds + 1):
                for name, checkout in checkouts.items():
                    speed = run(checkout, Path(scratch) / name, command)
                    if number:
                        found[name].append(speed)
            medians = {name: statistics.median(speeds) for name, speeds in found.items()}
            for name, speeds in found.items():
                print(f"{title:20} {name:7} {medians[name]:12,.0f}   ({min(speeds):,.0f} to {max(speeds):,.0f})")
            print(f"{title:20} ratio   {medians['after'] / medians['before']:12.2f}", flush=True)
    print(f"other work took {other.share():.1%} of the machine meanwhile")


if __name__ == "__main__":
    main()
