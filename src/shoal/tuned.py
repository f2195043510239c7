"""Tuned settings, one entry per (environment, algorithm): the defaults of a run.

`total_envs` is divided among the actors, so that the batch does not depend on the number of cores; each of several workers with a
replay has all of them, and a worker that learns from its own unrolls at most `worker_envs`. `steps` is the default budget, and
schedules run over it. `algo_on` replaces settings on a topology. Entries under `*` hold for environments that are not listed.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

# The net of A3C (Mnih et al. 2016): a third of the cost of the Nature net, and as good a player of the easier games.
SMALL_CONV: Settings = {"hidden": [256], "activation": "relu", "shared": True, "conv": ["16x8/4", "32x4/2"]}

# Continuous control from a replay. Small nets where they do: an update costs a tenth of that of the papers' nets.
PENDULUM: Settings = {
    "steps": 10_000,
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

GENERIC_PPO: Settings = {
    "learning_rate": 3e-4,
    "unroll": 128,
    "batch_size": 64,
    "epochs": 10,
    "normalise_obs": True,
    "normalise_reward": True,
}

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
        "steps": 1_500_000,
        "total_envs": 32,
        "worker_envs": 16,  # four gradients per unroll: one leaves greedy policies hovering, eight collapsed for good
        # An entropy bonus that fades, and a discount that makes hovering costly: greedy policies hover longer than sampled ones.
        "algo": {
            "learning_rate": 3e-3,
            "final_rate": 0.05,
            "gamma": 0.995,
            "lam": 0.98,
            "unroll": 32,
            "batch_size": 128,
            "entropy": 0.003,
            "final_entropy": 0.0,
            "reward_scale": 0.1,
            "max_grad_norm": 1.0,
        },
        # GA3C's batches are short, and each is one gradient: a lower rate and discount leave it unsolved.
        "algo_on": {"ga3c": {"learning_rate": 4e-3, "final_rate": 0.02, "gamma": 0.999, "final_entropy": 1.0}},
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
    # TD3 and DDPG differ in nothing else, so that a comparison of both is one of the algorithms. So few gradients leave no time for
    # a policy that follows every second one: after 6,000 steps it scored 5 less (one seed).
    ("Pendulum-v1", "td3"): {
        **PENDULUM,
        "steps": 5_000,
        "algo": {**PENDULUM["algo"], "reward_scale": 0.1, "noise_scale": 0.2, "policy_delay": 1},
    },
    ("Pendulum-v1", "ddpg"): {**PENDULUM, "algo": {**PENDULUM["algo"], "reward_scale": 0.1, "noise_scale": 0.2}},
    ("Pendulum-v1", "sac"): {**PENDULUM, "algo": {**PENDULUM["algo"], "gamma": 0.98}},
    # Rewards come from the flag alone: only noise that pushes one way for a while gets there.
    ("MountainCarContinuous-v0", "sac"): {
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
    },
    # A change of the setting shows within a few ticks. Errors of regulation are small: scaled up, they exceed Adam's steps.
    ("shoal/Booster-v0", "dqn"): {
        "steps": 180_000,
        "actors": 1,
        "total_envs": 16,
        "algo": {
            "learning_rate": 1e-3,
            "final_rate": 0.02,
            "gamma": 0.7,
            "every": 2,
            "capacity": 180_000,
            "explore": 0.2,
            "target_every": 500,
            "reward_scale": 10.0,
        },
        "net": {"hidden": [64, 64], "activation": "relu"},
    },
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
    ("*", "a2c"): {"steps": 1_000_000, "total_envs": 16, "algo": {"normalise_obs": True, "normalise_reward": True}},
    ("*", "reinforce"): {
        "steps": 1_000_000,
        "total_envs": 16,
        "algo": {"normalise_obs": True, "normalise_reward": True},
    },
}

# Added to the entries for images. Scores of Atari games differ by orders of magnitude: only the sign of a reward is learnt
# from, and a lost life counts as an end (Mnih et al. 2015). Rewards of other image environments keep their proportions.
ATARI: Settings = {"life_ends": True, "algo": {"reward_clip": "sign"}}
OTHER_IMAGES: Settings = {"algo": {"normalise_reward": True}}


def tuned(env: str, algo: str, is_image: bool, atari: bool = False) -> Settings:
    """The entry for an environment, or the general one if it has none. `ALE/Pong-v5` and `Pong-v5` are one game."""
    plain = TUNED.get(("*", algo), {"steps": 1_000_000, "total_envs": 16})
    known = TUNED.get((env.removeprefix("ALE/"), algo))
    if not is_image or (known is None and ("image", algo) not in TUNED):
        return known or plain
    found, beside = known or TUNED["image", algo], ATARI if atari else OTHER_IMAGES
    return {**beside, **found, "algo": {**beside["algo"], **found["algo"]}}
