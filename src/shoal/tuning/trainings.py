"""The trainings of a trial: one run per seed, each in its own folder, watched through its metrics.

`Trainings` is the protocol that starts them; `Runs` starts Shoal runs in separate processes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from shoal.core.errors import BadInput
from shoal.process.lock import holder_of, wait_for
from shoal.run.checkpoints import Checkpoints
from shoal.run.files import write_atomically
from shoal.run.folder import RunFolder, read_json
from shoal.run.sinks import read_metrics
from shoal.studies.handle import RunHandle, wait_for_any
from shoal.tuning.phases import Phase, Tally

DYING = 30.0  # seconds for a run to write its checkpoint after its driver was killed


class Training(Protocol):
    """A started training, such as `RunHandle`."""

    @property
    def code(self) -> int | None: ...
    @property
    def reason(self) -> str: ...
    def rows(self) -> list[dict[str, Any]]: ...
    def pause(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Trainings(Protocol):
    """Starts trainings; `go_on` resumes the one in `folder` from its last checkpoint."""

    def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Training: ...

    def wait(self, trainings: Sequence[Training], seconds: float) -> None:
        """Wait until one of them ends, at most this long."""
        ...


class Runs:
    """Shoal runs in separate processes, which end with this one; `launchers` start them on other machines."""

    def __init__(self, env: str, launchers: Sequence[str] = ()) -> None:
        self._env = env
        self._started: dict[str, list[RunHandle]] = {launcher: [] for launcher in launchers or ("",)}

    def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Training:
        launcher = self._free_launcher()
        if go_on:
            run = RunHandle.start(resume=folder, launcher=launcher, **settings)
        else:
            run = RunHandle.start(self._env, out=folder, launcher=launcher, **settings)
        self._started[launcher].append(run)
        return run

    def _free_launcher(self) -> str:
        """The one with the fewest runs now; the first of equals."""
        for launcher, runs in self._started.items():
            self._started[launcher] = [run for run in runs if run.running]
        return min(self._started, key=lambda launcher: len(self._started[launcher]))

    def wait(self, trainings: Sequence[Training], seconds: float) -> None:
        wait_for_any(cast(Sequence[RunHandle], trainings), seconds)


class Origin:
    """Start of a run within its trial: 0, or the checkpoint of the trial that it copies."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lineage.json"
        found = read_json(path) if path.exists() else {}
        self.unit, self.done = int(found.get("unit", 0)), float(found.get("done", 0.0))

    def target(self, phase: Phase, end: int) -> float:
        """The run's own count at the end of phase `end`."""
        return self.done + (end - self.unit) * phase.amount


class SeedRun:
    """The run of one seed: started if there is something left to train, and measured by its metrics."""

    def __init__(self, trainings: Trainings, folder: Path, settings: Mapping[str, Any], phase: Phase) -> None:
        self.folder, self.settings = folder, settings
        self._trainings, self._phase = trainings, phase
        self.training: Training | None = None
        self.tally, self.origin = Tally(), Origin(folder)
        holder = holder_of(folder)
        if holder is not None:  # it ends soon after its driver, with a checkpoint
            wait_for(holder, DYING)
        if holder_of(folder) is not None:
            raise BadInput(f"{str(folder)!r} is still being trained by {holder}: end that process first")
        steps = Checkpoints(folder / "checkpoints").steps()
        self._go_on = bool(steps)
        if steps:
            _cut_metrics(folder / "metrics.jsonl", steps[0])
            self.tally.add(read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else [])
        elif folder.exists():  # killed before its first checkpoint: nothing to resume
            shutil.rmtree(folder)

    def train(self, end: int) -> None:
        """Start the process, unless the metrics already reach the end of phase `end`."""
        if self.training is None and self.reached(end) is None:
            settings = self.settings
            if self._phase.unit == "steps" and self.origin.unit:  # a copy: its source stopped a little off the mark
                steps = self.origin.target(self._phase, int(settings["steps"] / self._phase.amount))
                settings = {**settings, "steps": round(steps)}
            self.training = self._trainings.start(self.folder, settings, go_on=self._go_on)

    def reached(self, end: int) -> int | None:
        """Line of metrics at which phase `end` was reached; None before that."""
        return self.tally.reached(self._phase.unit, self.origin.target(self._phase, end))

    def look(self) -> bool:
        """Read new lines of metrics; whether there were any, or the run has ended."""
        if self.training is None:
            return True
        ended = self.training.code is not None  # checked first: once a run has ended, its metrics are complete
        rows = self.training.rows()
        self.tally.add(rows)
        return ended or bool(rows)

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs, 0 for a run that needed no process."""
        return 0 if self.training is None else self.training.code

    def why_lost(self) -> str:
        """The external cause of the process's end; empty for a run that ended by itself or was refused."""
        if self.training is None or self.code is None or self.code in (1, 2):
            return ""
        if self.code != 0:
            return self.training.reason or f"exit code {self.code}"
        path = RunFolder(self.folder).summary_path
        ended = read_json(path).get("ended") if path.exists() else "stopped"
        return "" if ended in ("budget", "solved") else f"the run was {ended} by something else"


def _cut_metrics(path: Path, step: int) -> None:
    """Drop the lines after the checkpoint of `step`: they will be written again, and would count twice."""
    rows = read_metrics(path) if path.exists() else []
    kept = [row for row in rows if row["step"] <= step]
    if len(kept) < len(rows):
        write_atomically(path, b"".join(msgspec.json.encode(row) + b"\n" for row in kept))


def copy_run(source: Path, folder: Path, phase: Phase, lineage: Mapping[str, Any]) -> None:
    """Create a run folder that continues from the last checkpoint of another run: PBT's exploit.

    `lineage.json` names the source and its progress at that checkpoint. The source may be training: if it
    replaces that checkpoint meanwhile, the new one is copied.
    """
    for attempts_left in (2, 1, 0):
        try:
            return _copy_run(source, folder, phase, lineage)
        except FileNotFoundError:
            if not attempts_left:
                raise


def _copy_run(source: Path, folder: Path, phase: Phase, lineage: Mapping[str, Any]) -> None:
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    loaded = Checkpoints(source / "checkpoints").load("last")
    old = RunFolder(source)
    rows = [row for row in read_metrics(old.metrics_path) if row["step"] <= loaded.step]
    tally = Tally()
    tally.add(rows)
    (beside / "checkpoints").mkdir(parents=True)
    shutil.copy2(old.config_path, beside / "config.json")
    shutil.copy2(old.metrics_path, beside / "metrics.jsonl")
    manifest = read_json(loaded.path)
    shutil.copy2(loaded.path, beside / "checkpoints" / loaded.path.name)
    shutil.copy2(loaded.path.with_name(str(manifest["file"])), beside / "checkpoints" / str(manifest["file"]))
    new = RunFolder(beside)
    new.write_json(
        beside / "lineage.json",
        {**lineage, "source_run": str(source), "checkpoint": loaded.path.name, "done": tally.done(phase.unit)},
    )
    beside.rename(folder)
