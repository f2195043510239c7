"""Do two checkouts compute the same? Compares `params_sha256` over a fixed list of small runs, bit for bit.

    python benchmarks/same_bits.py BEFORE AFTER      # folders of source checkouts
    python benchmarks/same_bits.py BEFORE before.json
    python benchmarks/same_bits.py before.json AFTER  # hashes that were written down earlier

Each checkout runs in a process of its own with its `src` first on PYTHONPATH. Ends with 1 and the names of the runs that differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

T, B, ACTORS = 8, 4, 2
PPO = {"name": "ppo", "unroll": T, "batch_size": 16, "epochs": 2, "final_rate": 0.1}
NORMALISED = {**PPO, "normalise_obs": True, "normalise_reward": True}
A2C = {"name": "a2c", "unroll": T}
DQN = {"name": "dqn", "unroll": T, "batch_size": 16, "warmup": 40, "capacity": 300, "every": 4, "target_every": 20}
PRIORITIZED = {**DQN, "replay": "prioritized", "n_step": 3, "normalise_obs": True, "normalise_reward": True}
DYNA = {**DQN, "name": "dyna_q", "starts": 8, "horizon": 3, "model_hidden": (8,)}
GRU = {"hidden": (8,), "cell": "gru", "cell_size": 8}


def run(algo: Any, topology: Any, runtime: str = "inline", updates: int = 6, **settings: Any) -> dict[str, Any]:
    return {"algo": algo, "topology": topology, "runtime": runtime, "updates": updates, **settings}


def shared(consistency: str, **settings: Any) -> dict[str, Any]:
    return {"name": "shared_params", "consistency": consistency, **settings}


def sync(overlap: bool) -> dict[str, Any]:
    return {"name": "sync", "overlap": overlap}


def apart(**settings: Any) -> dict[str, Any]:
    return {"name": "actor_learner", **settings}


RUNS: dict[str, dict[str, Any]] = {
    "ppo sequential": run(PPO, "sequential"),
    "ppo sequential, continuous": run(NORMALISED, "sequential", env="Pendulum-v1"),
    "ppo fused": run(PPO, "sequential", "fused", actors=1),
    "ppo sync": run(PPO, sync(False)),
    "ppo sync, threads, overlap": run(NORMALISED, sync(True), "threads"),
    "ppo sync, processes": run(PPO, sync(True), "processes", net=GRU),
    "ppo sync, gru": run(PPO, sync(True), net=GRU),
    "ppo actor_learner": run(NORMALISED, apart()),
    "ppo actor_learner, window": run(PPO, apart(stream="window", reread=True)),
    "ppo actor_learner, refuses": run(PPO, apart(full="refuses", batch_unrolls=1, delay=1)),
    "ppo actor_learner, lockstep, threads": run(PPO, apart(max_lag=0), "threads"),
    "ppo actor_learner, 2 learners": run(NORMALISED, apart(), learners=2),
    "ppo actor_learner, 2 learners, joint": run(PPO, apart(workflow="joint"), learners=2, net=GRU),
    "ppo actor_learner, 2 learners, averaged": run(PPO, apart(average_every=2), learners=2),
    "ppo actor_learner, 2 learners, lockstep, processes": run(PPO, apart(max_lag=0), "processes", learners=2),
    "ppo shared_params, lock": run(PPO, shared("lock", pull="episode")),
    "ppo shared_params, sharded": run(PPO, shared("sharded", shards=2)),
    "ppo seed": run(PPO, {"name": "seed", "inference_wait": 0.0}),
    "a2c sequential": run({**A2C, "normalise_obs": True}, "sequential", backend="gymnasium"),
    "a2c sync": run(A2C, sync(True)),
    "a2c actor_learner": run(A2C, apart()),
    "a2c shared_params, hogwild": run({**A2C, "normalise_obs": True}, shared("hogwild")),
    "a2c shared_params, lock, split, random actions": run(A2C, shared("lock", split=True, epsilon=0.3)),
    "a2c shared_params, sharded": run(A2C, shared("sharded", shards=2), net=GRU),
    "a2c shared_params, gossip": run(A2C, shared("gossip")),
    "a2c ga3c": run(A2C, {"name": "ga3c", "predictors": 1, "trainers": 1, "adjust": False}),
    "reinforce sync": run({"name": "reinforce", "unroll": T}, sync(False)),
    "dqn sequential": run(DQN, "sequential"),
    "dqn sync, threads": run(PRIORITIZED, sync(True), "threads", net={"hidden": (8,), "dueling": True}),
    "dqn sync, processes": run(DQN, sync(False), "processes"),
    "dqn actor_learner": run(PRIORITIZED, apart()),
    "dqn shared_params, hogwild": run(DQN, shared("hogwild")),
    "dqn shared_params, lock, global": run(PRIORITIZED, shared("lock", replay="global")),
    "dqn shared_params, sharded": run(DQN, shared("sharded", shards=2)),
    "dyna_q dyna": run(DYNA, {"name": "dyna", "explorers": 0}),
    "dyna_q dyna, explorer": run({**DYNA, "replay": "prioritized"}, {"name": "dyna", "explorers": 1}, actors=3),
}


def hashes(names: list[str]) -> dict[str, str]:
    """Train each in this process: {run: params_sha256}."""
    import shoal

    found = {}
    for name in names:
        settings = {"env": "CartPole-v1", "actors": ACTORS, "net": {"hidden": (16,)}, **RUNS[name]}
        steps = settings.pop("updates") * T * B * settings["actors"]
        with TemporaryDirectory() as folder:
            done = shoal.train(
                settings.pop("env"),
                envs=B,
                steps=steps,
                seed=7,
                eval_episodes=0,
                sinks=("jsonl",),
                out=Path(folder) / "run",
                quiet=True,
                report=False,
                **settings,
            )
            found[name] = done.summary["params_sha256"]
    return found


def hashes_of(checkout: Path, names: list[str]) -> dict[str, str]:
    """The same in a process that imports from `checkout`."""
    env = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import same_bits, json, shoal\n"
    code += f"print(json.dumps([shoal.__file__, same_bits.hashes({names!r})]))"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=checkout, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{checkout}: a run failed")
    where, found = json.loads(done.stdout.splitlines()[-1])
    if not Path(where).is_relative_to(checkout):
        sys.exit(f"{checkout}: shoal was imported from {where}")
    return dict(found)


def main(words: list[str]) -> int:
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    before, after = (Path(word).resolve() for word in words)
    recorded = before.is_file()
    first = json.loads(before.read_text()) if recorded else hashes_of(before, list(RUNS))
    if after.suffix == ".json":
        after.write_text(json.dumps(first, indent=1) + "\n")
        print(f"{len(first)} hashes: {after}")
        return 0
    second = hashes_of(after, list(first))
    other = [name for name in first if first[name] != second[name]]
    for name in other:
        print(f"differs: {name}")
    print(f"{len(first) - len(other)} of {len(first)} runs have the same bits")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
