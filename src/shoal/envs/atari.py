"""Atari on ale-py with exactly the preprocessing that EnvPool trains on, so that evaluation sees the same game.

Observations are 84x84 grey frames, the last four stacked as channels. Each action is repeated for four frames, and the
last two are merged by their maximum. An episode begins with 1 to 30 idle frames, the last of them FIRE if the game has
that action. The emulator obeys every action (`repeat_action_probability` 0 as in EnvPool; ale-py's own v5 default is
0.25). Rewards are not clipped. A lost life does not end the episode; 27,000 steps do.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from shoal.envs.envpool import ATARI


class _IdleStart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Idle frames after a reset, then FIRE, on the emulator itself, below the frame skipping."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        meanings = self.env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        fire = meanings.index("FIRE") if "FIRE" in meanings else None
        idle = int(self.np_random.integers(1, ATARI["noop_max"] + 1)) - (fire is not None)
        for action in [0] * idle + ([] if fire is None else [fire]):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


class _ChannelsLast(gymnasium.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        stack, height, width = env.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, stack), np.uint8)

    def observation(self, observation: Any) -> Any:
        return np.moveaxis(np.asarray(observation), 0, -1)


def make_atari(name: str, extra: dict[str, Any]) -> Any:
    """The game `name` of ale-py's registry, preprocessed."""
    raw = gymnasium.make(
        name,
        disable_env_checker=True,
        frameskip=1,
        repeat_action_probability=ATARI["repeat_action_probability"],
        full_action_space=ATARI["full_action_space"],
        **extra,
    )
    small = AtariPreprocessing(
        _IdleStart(raw), noop_max=0, frame_skip=int(ATARI["frame_skip"]), screen_size=int(ATARI["img_height"])
    )
    stacked = _ChannelsLast(FrameStackObservation(small, int(ATARI["stack_num"]), padding_type="reset"))
    return TimeLimit(stacked, int(ATARI["max_episode_steps"]))
