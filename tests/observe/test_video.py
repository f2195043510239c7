"""The clip: it plays everywhere, and one line says why there is none."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.observe.video import record


class Stage:
    def __init__(self, shape: tuple[int, ...] = (101, 151, 3), ends_at: int = 25) -> None:
        self.shape, self.ends_at, self.at, self.actions = shape, ends_at, 0, []

    def reset(self, seed: int | None) -> int:
        self.at = 0
        return 0

    def step(self, action: Any) -> tuple[int, float, bool, bool]:
        self.at += 1
        self.actions.append(action)
        return self.at, 1.0, self.at >= self.ends_at, False

    def render(self) -> Any:
        return np.full(self.shape, 10 * self.at % 255, np.uint8)


def facts(tmp_path: Path, clip: bytes) -> dict[str, Any]:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    stream = re.search(r"Video: (\w+).*?, (\w+).*?, (\d+)x(\d+).*?, ([\d.]+) fps", said)
    assert stream is not None
    codec, pixels, width, height, fps = stream.groups()
    frames = int(re.findall(r"frame=\s*(\d+)", said)[-1])
    return {"codec": codec, "pix_fmt": pixels, "size": (int(width), int(height)), "fps": float(fps), "frames": frames}


def test_an_episode_is_filmed_to_its_end(tmp_path: Path) -> None:
    stage = Stage()
    meta = facts(tmp_path, record(stage, lambda observation: observation * 2, fps=25))
    assert meta["codec"] == "h264" and meta["pix_fmt"].startswith("yuv420p") and meta["fps"] == 25
    assert meta["size"][0] == 480 and meta["size"][1] % 2 == 0 and meta["frames"] == 26
    assert stage.actions == [2 * i for i in range(25)]


def test_odd_sizes_become_even_and_long_episodes_are_cut(tmp_path: Path) -> None:
    meta = facts(tmp_path, record(Stage(ends_at=10**6), lambda observation: 0, max_steps=9, width=None))
    assert meta["size"][0] % 2 == 0 and abs(meta["size"][0] - 151) <= 1 and meta["size"][1] % 2 == 0
    assert meta["frames"] == 10


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (None, "it gave nothing"),
        (np.zeros((4, 4)), "float64"),
        (RuntimeError("no display"), "RuntimeError: no display"),
    ],
)
def test_no_picture_is_one_line(picture: Any, reason: str) -> None:
    class Blind(Stage):
        def render(self) -> Any:
            if isinstance(picture, Exception):
                raise picture
            return picture

    with pytest.raises(BadInput, match=f"Blind-v0 cannot render a picture: .*{reason}"):
        record(Blind(), lambda observation: 0, name="Blind-v0")


def test_a_picture_that_changes_size_and_bad_counts_are_refused() -> None:
    class Growing(Stage):
        def render(self) -> Any:
            return np.zeros((100 + 2 * self.at, 100, 3), np.uint8)

    with pytest.raises(BadInput, match="changed its picture"):
        record(Growing(), lambda observation: 0)
    with pytest.raises(BadInput, match="both must be at least 1"):
        record(Stage(), lambda observation: 0, max_steps=0)
