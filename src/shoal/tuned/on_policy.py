"""Tuned settings of PPO, A2C and REINFORCE."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

# The net of A3C (Mnih et al. 2016): a third of the cost of the Nature net, and as good a player of the easier games.
SMALL_CONV: Settings = {"hidden": [256], "activation": "relu", "shared": True, "conv": ["16x8/4", "32x4/2"]}

GENERIC_PPO: Settings = {
    "learning_rate": 3e-4,
    "unroll": 128,
    "batch_size": 64,
    "epochs": 10,
    "normalise_obs": True,
    "normalise_reward": True,
}

ON_POLICY: dict[tuple[str, str], Settings] = {
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
        "steps_on": {"shared_params": 1_500_000},
        "total_envs": 32,
        "worker_envs": 16,  # four gradients per unroll: eight collapsed for good
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
        # Workers that learn alone make several gradients of an unroll, with an entropy bonus that fades and a discount that makes
        # hovering costly: their policies land greedily too. One learner for all collapses with these settings.
        "algo_on": {
            "shared_params": {
                "learning_rate": 3e-3,
                "final_rate": 0.05,
                "gamma": 0.995,
                "batch_size": 128,
                "final_entropy": 0.0,
            }
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
    ("LunarLander-v3", "reinforce"): {
        "steps": 3_000_000,
        "total_envs": 64,
        "algo": {"learning_rate": 3e-3, "final_rate": 0.1, "gamma": 0.999, "unroll": 128, "reward_scale": 0.1},
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
    # Mnih et al. 2016: its small net, which two cores can train, and its few steps per update. The squared gradients of this
    # net are about 4e-7: RMSProp must not start far above them, or its first thousands of steps are lost.
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
            "initial_square": 1e-6,
        },
        "net": SMALL_CONV,
    },
    # CleanRL's settings for its fastest Pong (16 environments, 128 steps, 3 epochs, clip 0.2), on the small net.
    ("image", "ppo"): {
        "steps": 10_000_000,
        "total_envs": 16,
        "algo": {
            "learning_rate": 5e-4,
            "final_rate": 0.0,
            "unroll": 128,
            "batch_size": 256,
            "epochs": 3,
            "clip": 0.2,
            "entropy": 0.01,
            "value_weight": 0.5,
        },
        "net": SMALL_CONV,
    },
    ("Pong-v5", "ppo"): {
        "steps": 4_000_000,
        "total_envs": 16,
        "algo": {
            "learning_rate": 5e-4,
            "final_rate": 0.1,
            "unroll": 128,
            "batch_size": 256,
            "epochs": 3,
            "clip": 0.2,
            "entropy": 0.01,
            "value_weight": 0.5,
        },
        "net": SMALL_CONV,
    },
    ("image", "reinforce"): {
        "steps": 10_000_000,
        "total_envs": 16,
        "algo": {"learning_rate": 2.5e-4, "final_rate": 0.0, "unroll": 128, "entropy": 0.01, "value_weight": 0.5},
        "net": SMALL_CONV,
    },
    # Few gradients per batch, so that the policy does not settle on doing nothing before it has seen the flag.
    ("MountainCarContinuous-v0", "ppo"): {
        "steps": 300_000,
        "total_envs": 16,
        "algo": {**GENERIC_PPO, "batch_size": 256, "epochs": 4},
    },
    ("*", "ppo"): {"steps": 1_000_000, "total_envs": 16, "algo": GENERIC_PPO},
    # A change of the setting shows within a few ticks. Seeds 0 to 4 score -10.7 to -11.6 on the plant, the tuned regulator -13.1.
    ("shoal/Booster-v0", "a2c"): {
        "steps": 400_000,
        "total_envs": 16,
        "algo": {"learning_rate": 3e-3, "gamma": 0.7, "normalise_obs": True, "normalise_reward": True},
    },
    ("*", "a2c"): {"steps": 1_000_000, "total_envs": 16, "algo": {"normalise_obs": True, "normalise_reward": True}},
    ("*", "reinforce"): {
        "steps": 1_000_000,
        "total_envs": 16,
        "algo": {"normalise_obs": True, "normalise_reward": True},
    },
}
