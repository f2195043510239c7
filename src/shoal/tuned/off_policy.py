"""Tuned settings of the algorithms with a replay: DQN, Dyna-Q, DDPG, TD3, SAC."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

# Continuous control from a replay. Small nets where they do: an update costs a tenth of that of the papers' nets.
PENDULUM: Settings = {
    "steps": 20_000,
    "actors": 1,
    "total_envs": 4,
    "algo": {
        "learning_rate": 2e-3,
        "final_rate": 0.1,
        "unroll": 16,
        "batch_size": 64,
        "tau": 0.01,
        "warmup": 500,
        "capacity": 50_000,
    },
    "net": {"hidden": [64, 64]},
}
NOISY: Settings = {"reward_scale": 0.1, "noise": "gaussian", "noise_scale": 0.2}
LUNAR_LANDER: Settings = {
    "steps": 200_000,
    "actors": 1,
    "total_envs": 8,
    "algo": {
        "learning_rate": 1e-3,
        "unroll": 16,
        "batch_size": 64,
        "tau": 0.01,
        "updates_per_step": 0.5,
        "n_step": 3,
        "warmup": 2_000,
        "reward_scale": 0.1,
    },
    "net": {"hidden": [64, 64]},
}
# Eight sequences of 40 steps a gradient; 10 steps of each warm the memory up.
MASKED_PENDULUM: Settings = {
    "steps": 24_000,
    "actors": 1,
    "total_envs": 4,
    "algo": {
        "learning_rate": 1e-3,
        "final_rate": 0.1,
        "gamma": 0.98,
        "unroll": 40,
        "batch_size": 320,
        "tau": 0.01,
        "updates_per_step": 0.5,
        "capacity": 50_000,
    },
    "net": {"hidden": [64, 64], "cell": "gru", "cell_size": 32},
}
# Rewards come from the flag alone: only noise that pushes one way for a while gets there.
MOUNTAIN_CAR: Settings = {
    "steps": 18_000,
    "actors": 1,
    "total_envs": 4,
    "algo": {
        "learning_rate": 1e-3,
        "unroll": 16,
        "batch_size": 128,
        "tau": 0.01,
        "warmup": 4_000,
        "warmup_noise": "ar1",
        "capacity": 50_000,
        "reward_scale": 0.1,
    },
    "net": {"hidden": [64, 64]},
}
# As for the discrete form below. The window of 15 columns shows the drift: a memory adds nothing.
BOOSTER: Settings = {
    "steps": 60_000,
    "actors": 1,
    "total_envs": 16,
    "algo": {
        "learning_rate": 1e-3,
        "final_rate": 0.02,
        "gamma": 0.7,
        "batch_size": 128,
        "updates_per_step": 0.25,
        "warmup": 2_000,
        "reward_scale": 10.0,
    },
    "net": {"hidden": [64, 64]},
}
CONTINUOUS: Settings = {
    "steps": 1_000_000,
    "actors": 1,
    "total_envs": 8,
    "algo": {
        "learning_rate": 1e-3,
        "batch_size": 128,
        "updates_per_step": 0.5,
        "warmup": 5_000,
        "capacity": 500_000,
        "normalise_obs": True,
    },
    "net": {"hidden": [128, 128], "layer_norm": True},
}

OFF_POLICY: dict[tuple[str, str], Settings] = {
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
    # TD3 and DDPG differ in nothing else, so that a comparison of both is one of the algorithms.
    ("Pendulum-v1", "td3"): {**PENDULUM, "algo": {**PENDULUM["algo"], **NOISY}},
    ("Pendulum-v1", "ddpg"): {**PENDULUM, "algo": {**PENDULUM["algo"], **NOISY}},
    ("Pendulum-v1", "sac"): {**PENDULUM, "algo": {**PENDULUM["algo"], "gamma": 0.98}},
    ("MountainCarContinuous-v0", "ddpg"): {**MOUNTAIN_CAR, "steps": 25_000},
    ("MountainCarContinuous-v0", "td3"): {**MOUNTAIN_CAR, "steps": 25_000},
    ("MountainCarContinuous-v0", "sac"): MOUNTAIN_CAR,
    # The memory infers the velocities.
    ("shoal/MaskedCartPole-v0", "dqn"): {
        "steps": 80_000,
        "actors": 1,
        "total_envs": 16,
        "algo": {
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "unroll": 16,
            "batch_size": 256,
            "every": 4,
            "n_step": 3,
            "capacity": 50_000,
            "explore": 0.15,
            "target_every": 100,
            "reward_scale": 0.1,
        },
        "net": {"hidden": [64], "activation": "relu", "cell": "gru", "cell_size": 32},
    },
    ("shoal/MaskedPendulum-v0", "sac"): MASKED_PENDULUM,
    ("shoal/MaskedPendulum-v0", "td3"): {**MASKED_PENDULUM, "algo": {**MASKED_PENDULUM["algo"], **NOISY}},
    # A change of the setting shows within a few ticks. Errors of regulation are small: scaled up, they exceed Adam's steps. No
    # channel shows the thermal drift: a memory infers it.
    ("shoal/Booster-v0", "dqn"): {
        "steps": 100_000,
        "actors": 1,
        "total_envs": 16,
        "algo": {
            "learning_rate": 1e-3,
            "final_rate": 0.02,
            "gamma": 0.7,
            "every": 4,
            "capacity": 100_000,
            "explore": 0.2,
            "target_every": 500,
            "reward_scale": 10.0,
        },
        "net": {"hidden": [64, 64], "activation": "relu", "cell": "gru"},
    },
    ("shoal/BoosterContinuous-v0", "ddpg"): BOOSTER,
    ("shoal/BoosterContinuous-v0", "td3"): BOOSTER,
    ("shoal/BoosterContinuous-v0", "sac"): BOOSTER,
    ("LunarLanderContinuous-v3", "ddpg"): LUNAR_LANDER,
    ("LunarLanderContinuous-v3", "sac"): LUNAR_LANDER,
    ("LunarLanderContinuous-v3", "td3"): LUNAR_LANDER,
    ("*", "ddpg"): CONTINUOUS,
    ("*", "td3"): CONTINUOUS,
    ("*", "sac"): CONTINUOUS,
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
    # Mnih et al. 2015, with the double estimator and three steps; its replay of a million rows would not fit into memory.
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
}
