"""Rules of a federation side by side: what a parent's weights are worth after the same number of environment steps.

    python benchmarks/federation_rules.py --seeds 30
    python benchmarks/federation_rules.py --env LunarLander-v3 --runtime threads --steps 1200000 --seeds 5 \\
        --rules "alpha_beta;staleness"
    python benchmarks/federation_rules.py --seeds 1 --steps 20000 --rules alpha_beta     # does it run?

Each row is a rule with its settings: `alpha_beta:alpha=0.9,beta=0`. A run is a `shoal federation local` of its own; its score is
the mean of greedy episodes of the parent's last weights. Rules that wait for several children get as many.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from shoal.process.commands import run_command
from shoal.studies.statistics import summarise

RULES = (
    "alpha_beta:alpha=0.5,beta=0.5",
    "alpha_beta:alpha=0.9,beta=0",
    "alpha_beta:alpha=0.9,beta=0.9",
    "fedavg",
    "staleness",
    "fedbuff",
    "diloco",
    "clipped_mean",
    "trimmed_mean",
    "median",
)
WAIT_FOR_THREE = ("clipped_mean", "trimmed_mean", "median")


def run(chosen: argparse.Namespace, rule: str, seed: int, out: Path) -> dict[str, float]:
    name, _, given = rule.partition(":")
    children = max(chosen.children, 3) if name in WAIT_FOR_THREE else chosen.children
    words = ["federation", "local", chosen.env, "--rule", name, "--children", str(children), "--seed", str(seed)]
    words += [f"--rule.{one}" for one in given.split(",") if one]
    words += ["--algo", chosen.algo, "--runtime", chosen.runtime, "--steps", str(chosen.steps), "--eval-every", "0"]
    words += ["--eval-episodes", str(chosen.episodes), "--quiet", "--no-report", "--json", "--out", str(out)]
    done = run_command(words)
    if done.code:
        sys.exit(f"{rule}, seed {seed}: {done.reason}")
    found: dict[str, float] = json.loads(done.out.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--runtime", default="fused")
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--rules", default="")
    chosen = parser.parse_args()
    rules = [rule for rule in chosen.rules.split(";") if rule] or list(RULES)
    scores: dict[str, list[float]] = {rule: [] for rule in rules}
    folder = Path(tempfile.mkdtemp(prefix="federation-rules-"))
    try:
        for seed in range(chosen.seeds):  # seeds outside: what else the machine does hits all rules
            for number, rule in enumerate(rules):
                scores[rule].append(run(chosen, rule, seed, folder / f"{number}-{seed}")["eval_mean"])
                print(f"{rule}, seed {seed}: {scores[rule][-1]:.1f}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    print(f"| rule | mean of {chosen.seeds} seeds | 95 % interval | interquartile mean | worst |")
    print("| --- | --- | --- | --- | --- |")
    for rule, values in sorted(scores.items(), key=lambda one: -summarise(one[1]).mean):
        whole = summarise(values)
        interval = "" if whole.ci is None else f"{whole.ci[0]:.1f} to {whole.ci[1]:.1f}"
        print(f"| {rule} | {whole.mean:.1f} | {interval} | {whole.iqm:.1f} | {min(values):.1f} |")


if __name__ == "__main__":
    main()
