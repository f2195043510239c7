"""Sample Factory's APPO on LunarLander: asynchronous, two rollout workers on two cores."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from measure import ENV, EPISODES, Measure, arguments
from pools import pool
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
    "max_policy_lag": 100_000,  # in minibatches: an iteration has 1,024 here, so that 1,000 would drop everything
    "learning_rate": 3e-4,
    "exploration_loss_coeff": 0.01,
    "reward_scale": 1.0,
    "nonlinearity": "tanh",
}
# Shoal's own batch to the last number: 64 environments of 64 steps, 16 minibatches of 256, four epochs, its learning rate.
SAME = {
    **SETTINGS,
    "num_envs_per_worker": 32,
    "batch_size": 256,
    "num_batches_per_epoch": 16,
    "max_policy_lag": 100_000,
    "learning_rate": 2.5e-3,
    "normalize_input": False,
    "normalize_returns": False,
}
# Settings that are made even if Sample Factory keeps its own hyperparameters: workers for two cores, no recurrence.
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


class PoolOfAgents(gym.Env[Any, Any]):
    """EnvPool's environments as agents of one environment, which is how Sample Factory takes a vector of them.

    It asks for a reset with the end of an episode, and EnvPool resets at the step after: that step's reward is 0 and its
    action is ignored, so one row of each episode teaches nothing.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._pool = pool(size, seed)
        self.num_agents, self.is_multiagent = size, True
        self.observation_space, self.action_space = self._pool.observation_space, self._pool.action_space

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return torch.from_numpy(self._pool.reset()[0]), {}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self._pool.step(np.asarray(action).astype(np.int32))
        rest = (torch.from_numpy(np.ascontiguousarray(x)) for x in (obs, reward, terminated, truncated))
        return (*rest, {})


def make_pool(
    size: int, name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None
) -> gym.Env[Any, Any]:
    worker = 0 if env_config is None else int(env_config.worker_index)
    return PoolOfAgents(size, 1_000 * worker + int(cfg.seed or 0))


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
    cfg = runner.cfg
    measure.report("sample-factory", settings, int(cfg.batch_size), cfg.batch_size / cfg.num_epochs)


def main() -> None:
    args = arguments(__doc__)
    settings = {"near": SETTINGS, "shoal": SAME, "zoo": ZOO, "own": PLAIN}[args.hyper]
    make: Callable[..., Any] = make_env
    if args.physics == "envpool":
        # A pool is one batched environment of as many agents: a worker has one, and samples it without splitting.
        size = int(settings["num_envs_per_worker"])
        settings = {**settings, "num_envs_per_worker": 1, "worker_num_splits": 1, "batched_sampling": True}
        make = partial(make_pool, size)
    run(ENV, make, settings, ("--encoder_mlp_layers", "64", "64"), args)


if __name__ == "__main__":
    main()
