"""Tuned settings, one entry per (environment, algorithm): what a run uses where nothing else is said.

`total_envs` is shared out among the actors, so that the batch does not depend on the number of cores. `steps` is the default
budget, and schedules run over the budget. Entries under `*` hold for environments that are not listed.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

TUNED: dict[tuple[str, str], Settings] = {
    ("LunarLander-v3", "ppo"): {
        "steps": 614_400,
        "total_envs": 64,
        "algo": {
            "learning_rate": 2.5e-3,
            "final_rate": 0.1,
            "gamma": 0.999,
            "lam": 0.98,
            "unroll": 64,
            "batch_size": 256,
            "epochs": 4,
            "clip": 0.3,
            "entropy": 0.003,
            "reward_scale": 0.1,
            "max_grad_norm": 0.5,
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("LunarLander-v3", "a2c"): {
        "steps": 2_500_000,
        "total_envs": 32,
        "algo": {
            "learning_rate": 4e-3,
            "final_rate": 0.02,
            "gamma": 0.999,
            "lam": 0.98,
            "unroll": 32,
            "entropy": 0.003,
            "reward_scale": 0.1,
            "max_grad_norm": 1.0,
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("LunarLander-v3", "reinforce"): {
        "steps": 3_000_000,
        "total_envs": 64,
        "algo": {"learning_rate": 3e-3, "final_rate": 0.1, "gamma": 0.999, "unroll": 128, "reward_scale": 0.1},
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("LunarLander-v3", "dqn"): {
        "steps": 400_000,
        "actors": 1,
        "total_envs": 32,
        "algo": {
            "learning_rate": 1e-3,
            "final_rate": 0.05,
            "gamma": 0.99,
            "unroll": 8,
            "batch_size": 128,
            "every": 4,
            "n_step": 3,
            "capacity": 65_536,
            "warmup": 2_000,
            "explore": 0.15,
            "epsilon_end": 0.02,
            "target_every": 200,
            "reward_scale": 0.1,
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("CartPole-v1", "ppo"): {
        "steps": 500_000,
        "total_envs": 128,
        "algo": {
            "learning_rate": 2.5e-3,
            "final_rate": 0.1,
            "gamma": 0.98,
            "lam": 0.9,
            "unroll": 32,
            "batch_size": 512,
            "reward_scale": 0.1,
        },
        "net": {"hidden": [32, 32]},
    },
    ("CartPole-v1", "a2c"): {
        "steps": 1_000_000,
        "total_envs": 64,
        "algo": {
            "learning_rate": 1e-2,
            "final_rate": 0.1,
            "gamma": 0.98,
            "lam": 0.98,
            "entropy": 1e-3,
            "reward_scale": 0.1,
        },
        "net": {"hidden": [32, 32]},
    },
    ("CartPole-v1", "reinforce"): {
        "steps": 1_000_000,
        "total_envs": 64,
        "algo": {"learning_rate": 3e-3, "final_rate": 0.1, "gamma": 0.98, "unroll": 32, "reward_scale": 0.1},
        "net": {"hidden": [32, 32]},
    },
    ("Pendulum-v1", "ppo"): {
        "steps": 600_000,
        "total_envs": 32,
        "algo": {
            "learning_rate": 1e-3,
            "final_rate": 0.1,
            "gamma": 0.95,
            "unroll": 100,
            "batch_size": 400,
            "epochs": 8,
            "normalise_obs": True,
            "normalise_reward": True,
        },
    },
    ("CartPole-v1", "dqn"): {
        "steps": 250_000,
        "actors": 1,
        "total_envs": 16,
        "algo": {
            "learning_rate": 5e-4,
            "final_rate": 0.05,
            "gamma": 0.98,
            "unroll": 8,
            "batch_size": 128,
            "every": 2,
            "n_step": 5,
            "capacity": 50_000,
            "explore": 0.08,
            "epsilon_end": 0.01,
            "target_every": 200,
            "reward_scale": 0.1,
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("LunarLander-v3", "dyna_q"): {
        "steps": 300_000,
        "actors": 2,
        "total_envs": 32,
        "algo": {
            "learning_rate": 1e-3,
            "final_rate": 0.05,
            "gamma": 0.99,
            "unroll": 8,
            "batch_size": 128,
            "every": 4,
            "capacity": 65_536,
            "warmup": 2_000,
            "explore": 0.2,
            "epsilon_end": 0.02,
            "target_every": 200,
            "reward_scale": 0.1,
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("CartPole-v1", "dyna_q"): {
        "steps": 150_000,
        "actors": 2,
        "total_envs": 16,
        "algo": {
            "learning_rate": 1e-3,
            "final_rate": 0.05,
            "gamma": 0.98,
            "unroll": 8,
            "batch_size": 128,
            "every": 2,
            "capacity": 50_000,
            "explore": 0.2,
            "target_every": 200,
            "reward_scale": 0.1,
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("*", "dyna_q"): {
        "steps": 1_000_000,
        "actors": 2,
        "total_envs": 16,
        "algo": {"explore": 0.1, "normalise_obs": True, "normalise_reward": True},
    },
    ("*", "dqn"): {
        "steps": 1_000_000,
        "actors": 1,
        "total_envs": 16,
        "algo": {"explore": 0.1, "normalise_obs": True, "normalise_reward": True},
    },
    # Mnih et al. 2015, with the double estimator and three steps; a million frames of four pictures would not fit here.
    ("image", "dqn"): {
        "steps": 10_000_000,
        "actors": 1,
        "total_envs": 16,
        "algo": {
            "learning_rate": 1e-4,
            "unroll": 8,
            "batch_size": 32,
            "every": 4,
            "capacity": 50_000,
            "warmup": 10_000,
            "n_step": 3,
            "explore": 0.05,
            "epsilon_end": 0.01,
            "target_every": 2_000,
        },
        "net": {"hidden": [512], "dueling": True},
    },
    # Mnih et al. 2016: its small net, which two cores can learn with, and its few steps an update.
    ("image", "a2c"): {
        "steps": 10_000_000,
        "total_envs": 16,
        "algo": {
            "learning_rate": 7e-4,
            "final_rate": 0.0,
            "unroll": 10,
            "entropy": 0.01,
            "value_weight": 0.5,
            "max_grad_norm": 0.5,
        },
        "net": {"hidden": [256], "activation": "relu", "shared": True, "conv": ["16x8/4", "32x4/2"]},
    },
    # A3C's small net too, on which four epochs cost two cores 1.5 ms a step.
    ("Pong-v5", "ppo"): {
        "steps": 2_000_000,
        "total_envs": 16,
        "algo": {
            "learning_rate": 5e-4,
            "final_rate": 0.1,
            "unroll": 64,
            "batch_size": 256,
            "epochs": 4,
            "clip": 0.1,
            "entropy": 0.01,
            "value_weight": 0.5,
        },
        "net": {"hidden": [256], "activation": "relu", "shared": True, "conv": ["16x8/4", "32x4/2"]},
    },
    ("*", "ppo"): {
        "steps": 1_000_000,
        "total_envs": 16,
        "algo": {
            "learning_rate": 3e-4,
            "unroll": 128,
            "batch_size": 256,
            "normalise_obs": True,
            "normalise_reward": True,
        },
    },
    ("*", "a2c"): {
        "steps": 1_000_000,
        "total_envs": 16,
        "algo": {"normalise_obs": True, "normalise_reward": True},
    },
    ("*", "reinforce"): {
        "steps": 1_000_000,
        "total_envs": 16,
        "algo": {"normalise_obs": True, "normalise_reward": True},
    },
}

ATARI: Settings = {
    "steps": 10_000_000,
    "total_envs": 16,
    "algo": {"learning_rate": 2.5e-4, "final_rate": 0.0, "unroll": 128, "batch_size": 512, "entropy": 0.01},
    "net": {"hidden": [512], "activation": "relu", "shared": True},
}


def tuned(env: str, algo: str, is_image: bool) -> Settings:
    """The entry for an environment, or what holds for those that have none."""
    known = TUNED.get((env, algo))
    if known is not None:
        return known
    plain = TUNED.get(("*", algo), {"steps": 1_000_000, "total_envs": 16})
    if not is_image:
        return plain
    if ("image", algo) in TUNED:
        return TUNED["image", algo]
    # Images bring their own net and budget; a field that only PPO has is left out for the others.
    algo_settings = {k: v for k, v in ATARI["algo"].items() if algo == "ppo" or k != "batch_size"}
    return {**ATARI, "algo": algo_settings}
