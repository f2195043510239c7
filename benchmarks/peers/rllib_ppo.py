"""RLlib's PPO (new API stack, PyTorch): two environment runners, the learner in the driver."""

from __future__ import annotations

import logging

from measure import ENV, Measure, arguments

SETTINGS = {
    "gamma": 0.999,
    "lambda_": 0.98,
    "lr": 3e-4,
    "train_batch_size_per_learner": 4096,
    "minibatch_size": 256,
    "num_epochs": 4,
    "entropy_coeff": 0.01,
}
RUNNERS = {"num_env_runners": 2, "num_envs_per_env_runner": 16}

if __name__ == "__main__":
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return)
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig

    torch.set_num_threads(1)  # with two, beside its own runners, its learner is ten times slower
    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    config = PPOConfig().environment(ENV).framework("torch").debugging(seed=args.seed, log_level="ERROR")
    algorithm = config.env_runners(**RUNNERS).learners(num_learners=0).training(**SETTINGS).build_algo()
    complete = False
    while not complete:
        result = algorithm.train()
        mean = result["env_runners"].get("episode_return_mean")
        # RLlib itself keeps the mean of the last 100 episodes; it is a mean of as many once that many have ended.
        ended = result["env_runners"].get("num_episodes_lifetime") or 0
        returns = [float(mean)] * min(int(ended), 100) if mean is not None else []
        complete = measure.iteration(result["num_env_steps_sampled_lifetime"], returns)
    size, epochs = int(SETTINGS["minibatch_size"]), int(SETTINGS["num_epochs"])
    measure.report("ray", {**SETTINGS, **RUNNERS}, size, size / epochs)
    algorithm.stop()
    ray.shutdown()
