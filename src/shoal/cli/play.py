"""`shoal play`: films a run's policy."""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.cli.flags import one_positional, split, whole_number
from shoal.core.errors import BadInput

USAGE = """usage: shoal play RUN [--video FILE.mp4] [--seed S] [--max-steps N]

Films one greedy episode, of at most N steps (1000), in Gymnasium's own environment. The file is video.mp4 in the run folder
unless --video names another.
"""


def run(words: list[str]) -> int:
    parsed = split(words, ("help", "quiet"), ("video", "seed", "max-steps"))
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    path = one_positional(parsed, "run folder")
    seed = whole_number(parsed, "seed", 0, least=0) if "seed" in parsed.options else None
    steps = whole_number(parsed, "max-steps", 1000)
    video = Path(parsed.options["video"]) if "video" in parsed.options else None
    if video is not None and video.suffix != ".mp4":
        raise BadInput(f"--video is {str(video)!r}: the ending must be .mp4")
    if video is not None and video.is_dir():
        raise BadInput(f"--video is {str(video)!r}: that is a folder")
    if video is not None and not video.absolute().parent.is_dir():
        raise BadInput(f"--video is {str(video)!r}: there is no folder {str(video.absolute().parent)!r}")
    from shoal import api

    run = api.load(path)
    target = video or run.folder.video_path
    run.film(target, seed=seed, max_steps=steps)
    if "quiet" not in parsed.switches:
        print(f"video: {target}", file=sys.stderr)
    return 0
