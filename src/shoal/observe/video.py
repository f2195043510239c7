"""An episode as an mp4 that every browser plays: H.264, yuv420p, even sizes."""

from __future__ import annotations

import importlib
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.core.errors import BadInput, RunFailed


class Stage(Protocol):
    """An environment that can be filmed."""

    def reset(self, seed: int | None) -> Any: ...

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """(observation, reward, terminated, truncated)"""

    def render(self) -> Any:
        """The current frame: uint8 [height, width, 3]."""


def record(
    env: Stage,
    policy: Callable[[Any], Any],
    max_steps: int = 1000,
    fps: int = 50,
    *,
    width: int | None = 480,
    seed: int | None = 0,
    name: str = "environment",
    seconds: float = math.inf,
) -> bytes:
    """The mp4 of one episode, cut after `max_steps` or `seconds` of drawing. `width` in pixels; None keeps the frames' own.

    Raises `BadInput` if the environment returns no frames.
    """
    if max_steps < 1 or fps < 1:
        raise BadInput(f"a video of {max_steps} steps at {fps} frames per second: both must be at least 1")
    until = time.monotonic() + seconds
    observation = env.reset(seed)
    first = _picture(env, name)
    with tempfile.TemporaryDirectory(prefix="shoal-video-") as folder:
        path = Path(folder) / "clip.mp4"
        writer = _writer(path, first, fps, width)
        try:
            writer.send(first)
            for _ in range(max_steps):
                observation, _, terminated, truncated = env.step(policy(observation))
                frame = _picture(env, name)
                if frame.shape != first.shape:
                    raise BadInput(f"{name} changed its picture from {first.shape} to {frame.shape} within an episode")
                writer.send(frame)
                if terminated or truncated or time.monotonic() > until:
                    break
        finally:
            writer.close()
        if not path.is_file() or not path.stat().st_size:
            raise RunFailed("ffmpeg wrote no video")
        return path.read_bytes()


def _picture(env: Stage, name: str) -> np.ndarray:
    """The current frame. Raises `BadInput` with one line that says why there is none."""
    try:
        picture = env.render()
    except Exception as error:  # an environment may raise anything here
        raise BadInput(f"{name} cannot render a picture: {type(error).__name__}: {error}") from error
    frame: np.ndarray[Any, Any] = np.asarray(picture) if picture is not None else np.zeros(0)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        shown = "nothing" if picture is None else f"{frame.dtype} {list(frame.shape)}"
        raise BadInput(
            f"{name} cannot render a picture: it gave {shown}; it must be uint8 [height, width, 3] (rgb_array)"
        )
    return np.ascontiguousarray(frame)


def _writer(path: Path, frame: np.ndarray, fps: int, width: int | None) -> Any:
    ffmpeg: Any = importlib.import_module("imageio_ffmpeg")
    height, own_width = frame.shape[:2]
    # H.264 in yuv420p halves the colour's resolution: both sides must be even. Small pixel art is enlarged unblurred.
    goal = own_width if width is None else width
    scale = f"scale={goal - goal % 2}:-2:flags={'neighbor' if goal >= 2 * own_width else 'bicubic'}"
    writer = ffmpeg.write_frames(
        str(path),
        (own_width, height),
        fps=fps,
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=1,
        quality=None,
        ffmpeg_log_level="error",
        output_params=["-vf", scale, "-crf", "26", "-preset", "veryfast", "-movflags", "+faststart"],
    )
    with warnings.catch_warnings():
        # JAX warns of forks; this one is followed by an exec at once, which is safe.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        writer.send(None)
    return writer
