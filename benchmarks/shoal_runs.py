"""Shoal as a user runs it: the installed command, its JSON, a run folder of its own each time."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rooms import HERE, ROOT, Failed, pinned, run_json

SHOAL = os.environ.get("SHOAL", str(ROOT / ".venv" / "bin" / "shoal"))
PYTHON = str(Path(SHOAL).parent / "python")
TMP = HERE / "results" / "tmp"


def folder() -> Path:
    """A path for a run folder that does not exist yet."""
    TMP.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=TMP)) / "run"


def train(
    *words: str,
    timeout: float = 600,
    cache: Path | None = None,
    keep: bool = False,
    minutes: float | None = None,
    core: int | None = None,
) -> dict[str, Any]:
    """The result of `shoal train ...`. `cache` is another folder for compiled code; `keep` leaves the run folder; after
    `minutes` the run is interrupted, and ends with a checkpoint; with `core` it has that core alone."""
    out = folder()
    env = {"PYTHONPATH": str(HERE)} | ({"SHOAL_CACHE": str(cache)} if cache else {})
    try:
        ends = ["timeout", "--foreground", "--preserve-status", "-s", "INT", str(60 * minutes)] if minutes else []
        command = [*ends, *pinned(core), SHOAL, "train", *words, "--json", "--quiet", "--no-report", "--out", str(out)]
        return {"who": "Shoal", **run_json(command, timeout, env)}
    except Failed as failure:
        return {"who": "Shoal", "error": str(failure)}
    finally:
        if not keep:
            shutil.rmtree(out.parent, ignore_errors=True)


def evaluate(run: str, episodes: int) -> dict[str, Any]:
    """`shoal eval`, in Gymnasium's own environment."""
    try:
        return run_json([SHOAL, "eval", run, "--episodes", str(episodes), "--json"], timeout=900)
    except Failed as failure:
        return {"error": str(failure)}


def solved_after(row: dict[str, Any]) -> float | None:
    """Seconds from the command's start to the goal, set-up included."""
    if row.get("solved_at_s") is None or row.get("setup_s") is None:
        return None
    return float(row["setup_s"]) + float(row["solved_at_s"])
