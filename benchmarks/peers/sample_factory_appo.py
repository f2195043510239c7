"""Sample Factory's APPO on Gymnasium's LunarLander: asynchronous, two rollout workers on two cores."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from measure import ENV, EPISODES, Measure, arguments
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

SETTINGS = {
    "algo": "APPO",
    "async_rl": True,
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "worker_num_splits": 2,
    "policy_workers_per_policy": 1,
    "rollout": 64,
    "batch_size": 2048,
    "num_batches_per_epoch": 2,
    "num_epochs": 4,
    "learning_rate": 1e-3,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "exploration_loss_coeff": 0.003,
    "reward_scale": 0.1,
    "use_rnn": False,
    "recurrence": 1,
    "with_vtrace": False,
    "normalize_input": True,
    "normalize_returns": True,
    "nonlinearity": "relu",
}


# The RL Zoo's PPO settings for LunarLander: 16 environments, 16,384 steps an iteration, minibatches of 64, tanh. A rollout may
# not be longer than a minibatch here, so the 1,024 steps of each environment come as 16 rollouts.
ZOO = {
    **SETTINGS,
    "num_envs_per_worker": 8,
    "rollout": 64,
    "batch_size": 64,
    "num_batches_per_epoch": 256,
    "max_policy_lag": 100_000,  # it counts minibatches, of which an iteration has 1,024 here; 1,000 would drop everything
    "learning_rate": 3e-4,
    "exploration_loss_coeff": 0.01,
    "reward_scale": 1.0,
    "nonlinearity": "tanh",
}
# What is left when Sample Factory keeps its own hyperparameters: how many workers two cores have, and no memory.
PLAIN = {name: SETTINGS[name] for name in ("algo", "num_workers", "num_envs_per_worker", "use_rnn")}


class Iterations(AlgoObserver):
    """A point after each training step. Steps that were learnt from and raw returns, as its runner counts them."""

    def __init__(self, measure: Measure) -> None:
        self.measure = measure

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        episodes = runner.policy_avg_stats.get("reward", [[]])[0]
        returns = [float(value) for value in episodes]
        if self.measure.iteration(sum(runner.env_steps.values()), returns):
            runner.cfg.train_for_env_steps = 0  # the runner asks right after this call whether it should end


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gym.Env[Any, Any]:
    return gym.make(name, render_mode=render_mode)


def run(env: str, make: Callable[..., Any], settings: dict[str, Any], words: Sequence[str], args: Any) -> None:
    """Train for as long as the arguments say, and print what was measured."""
    measure = Measure(args.seconds, args.until_return, env)
    register_env(env, make)
    with tempfile.TemporaryDirectory() as folder:
        words = [*(f"--{name}={value}" for name, value in settings.items()), *words]
        words += [f"--env={env}", "--device=cpu", f"--seed={args.seed}", f"--train_dir={folder}", "--experiment=bench"]
        words += [f"--stats_avg={EPISODES}", "--train_for_env_steps=1000000000", "--save_every_sec=3600"]
        words += ["--log_to_file=False"]
        parser, _ = parse_sf_args(argv=words)
        _, runner = make_runner(parse_full_cfg(parser, words))
        runner.register_observer(Iterations(measure))
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            sys.exit("Sample Factory stopped with a failure: see its log above")
    measure.report("sample-factory", settings)


def main() -> None:
    args = arguments(__doc__)
    settings = {"shoal": SETTINGS, "zoo": ZOO, "own": PLAIN}[args.hyper]
    run(ENV, make_env, settings, ("--encoder_mlp_layers", "64", "64"), args)


if __name__ == "__main__":
    main()
