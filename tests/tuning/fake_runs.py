"""Trainings without training: runs that write metrics as told, so that a study's own logic is tested in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import RunFolder, read_json
from shoal.tuning.trainings import Training

STEP = 100  # environment steps of a line of metrics, with as many episodes
Score = Callable[[Mapping[str, Any], int], float]  # of (settings, step)


class FakeRun:
    """Advances by one line of metrics a look, and has its budget and a checkpoint as a run has."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], score: Score, doom: list[int]) -> None:
        self.folder, self.settings, self._score, self._doom = RunFolder(folder), settings, score, doom
        self.code: int | None = None
        self.reason = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder.write_json(self.folder.config_path, {"settings": {k: str(v) for k, v in settings.items()}})
        steps = Checkpoints(self.folder.checkpoints).steps()
        self.step = steps[0] if steps else 0

    def rows(self) -> list[dict[str, Any]]:
        if self.code is not None:
            return []
        if self._doom:
            self.code, self.reason = self._doom.pop(), "killed"
            return []
        self.step += STEP
        row = {"step": self.step, "speed/env_steps": self.step, "speed/seconds": self.step / 1000}
        row |= {"episode/count": STEP, "episode/return": self._score(self.settings, self.step)}
        with self.folder.metrics_path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        if self.step >= int(self.settings["steps"]):
            self._end("budget")
        return [row]

    def _end(self, why: str) -> None:
        if self.code is None:
            self.code = 0
            Checkpoints(self.folder.checkpoints).save(self.step, {"state/params/w": np.zeros(1)})
            self.folder.write_json(self.folder.summary_path, {"ended": why})

    def pause(self) -> None:
        self._end("paused")

    def stop(self) -> None:
        self._end("stopped")

    def kill(self) -> None:
        if self.code is None:
            self.code, self.reason = -9, "killed"


class FakeRuns:
    """Starts fake runs. `dooms[n]` are exit codes that the n-th start ends with at once."""

    def __init__(self, score: Score, dooms: Mapping[int, int] | None = None) -> None:
        self.score, self.dooms = score, dict(dooms or {})
        self.started: list[tuple[Path, dict[str, Any], bool]] = []
        self.runs: list[FakeRun] = []

    def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Training:
        doom = [self.dooms.pop(len(self.started))] if len(self.started) in self.dooms else []
        self.started.append((folder, dict(settings), go_on))
        self.runs.append(FakeRun(folder, settings, self.score, doom))
        return self.runs[-1]

    def wait(self, trainings: Sequence[Training], seconds: float) -> None:
        pass


def lineage_of(folder: Path) -> dict[str, Any]:
    return read_json(folder / "lineage.json")
