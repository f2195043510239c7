"""Sample Factory's APPO on Pong: the settings of its own Atari example, with as many workers as there are cores, asynchronous."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from measure import arguments
from sample_factory_appo import run

ENV = "Pong-v5"
SETTINGS = {
    "algo": "APPO",
    "async_rl": True,
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "worker_num_splits": 2,
    "obs_scale": 255.0,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "exploration_loss_coeff": 0.01,
    "nonlinearity": "relu",
    "use_rnn": False,
    "recurrence": 1,
    "batch_size": 256,
    "rollout": 128,
    "num_epochs": 4,
    "num_batches_per_epoch": 8,
    "max_grad_norm": 0.5,
    "ppo_clip_ratio": 0.1,
    "value_loss_coeff": 0.5,
    "learning_rate": 2.5e-4,
    "adam_eps": 1e-5,
    "with_vtrace": False,
    "normalize_input": True,
    "normalize_returns": True,
    "encoder_conv_architecture": "convnet_impala",  # 16 of 8x8, 32 of 4x4: the net of A3C
}


def make_pong(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """What EnvPool trains on: 84x84 grey, four frames an action, four pictures."""
    import ale_py

    gym.register_envs(ale_py)
    raw = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=False)
    small = gym.wrappers.AtariPreprocessing(raw, noop_max=30, frame_skip=4, screen_size=84)
    return gym.wrappers.FrameStackObservation(small, 4)


def main() -> None:
    run(ENV, make_pong, SETTINGS, ("--encoder_conv_mlp_layers", "256"), arguments(__doc__))


if __name__ == "__main__":
    main()
