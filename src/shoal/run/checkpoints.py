"""Checkpoints that survive being killed, running out of disk, and damage.

A checkpoint is `step-N.safetensors` and the manifest `step-N.json`, which names that file with its SHA-256. The
manifest is written last and is the commit: without it there is no checkpoint, and the file it names is already on disk.
Manifests are numbered in the order of saving (`serial`), so that a run resumed from an old step still knows which
checkpoint is newest.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from shoal.core.errors import BadInput
from shoal.run import files, tensors
from shoal.run.files import Corrupt

S = TypeVar("S", bound=msgspec.Struct)
FORMAT = 1
WEIGHTS = "state/params/"  # prefix of the names of weights
_DATA = re.compile(r"step-(\d+)(?:\.\d+)?\.safetensors")
_MANIFEST = re.compile(r"step-(\d+)\.json")


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of `step-N.json`. `sha256` seals the manifest itself, and must be its first field."""

    sha256: str
    format: int
    step: Annotated[int, msgspec.Meta(ge=0)]
    serial: Annotated[int, msgspec.Meta(ge=0)]  # number of checkpoints committed before it
    file: Annotated[str, msgspec.Meta(pattern=r"^step-\d+(\.\d+)?\.safetensors$")]  # a bare name, in this folder
    size: int
    file_sha256: str
    score: float | None
    saved_at: float  # seconds since 1970, for people
    meta: dict[str, Any]


class Best(msgspec.Struct):
    sha256: str
    step: int
    score: float


class Loaded(NamedTuple):
    step: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    path: Path  # of the manifest


def _ignore(message: str) -> None:
    pass


class Checkpoints:
    """The checkpoints in `folder`: the last `keep` and the best by score. One writer; readers may read at any time.

    `on_alert` receives one line for each problem that a user should know about. Problems that training survives raise nothing.
    """

    def __init__(self, folder: Path | str, keep: int = 3, on_alert: Callable[[str], None] = _ignore) -> None:
        if keep < 1:
            raise BadInput(f"{keep} checkpoints to keep: at least 1")
        self.folder = Path(folder)
        self.keep = keep
        self.on_alert = on_alert
        self._failing = False
        self._cleaned = False

    # Saving

    def save(
        self, step: int, arrays: Mapping[str, Any], meta: Mapping[str, Any] | None = None, score: float | None = None
    ) -> Path | None:
        """Commit a checkpoint and return its manifest's path; None, after one alert, if the disk refuses.

        Weights that are not finite are refused in the same way, to keep the earlier checkpoints.
        """
        spoilt = [name for name, array in arrays.items() if name.startswith(WEIGHTS) and not np.isfinite(array).all()]
        if spoilt:
            self._alert_once(
                f"no checkpoint at step {step}: {spoilt[0]!r} is not finite, nor are {len(spoilt) - 1} other arrays;"
                " the earlier ones are intact"
            )
            return None
        data = tensors.encode(arrays)
        try:
            files.make_directory(self.folder)
            self._clean_once()
            path = self._commit(step, data, dict(meta or {}), _finite(score))
        except OSError as error:
            self._alert_once(
                f"cannot save a checkpoint at step {step} in {self.folder}: {error.strerror or error};"
                " the earlier ones are intact, training continues"
            )
            return None
        try:
            self._point_at_best()
            self._prune()
        except OSError as error:
            self._alert_once(f"saved {path}, but cannot tidy up around it: {error.strerror or error}")
            return path
        self._failing = False
        return path

    def _clean_once(self) -> None:
        """Remove files that killed writers left. A reader, perhaps on another machine, cannot tell which writers are alive."""
        if not self._cleaned:
            files.clean_temporaries(self.folder)
        self._cleaned = True

    def _alert_once(self, message: str) -> None:
        if not self._failing:
            self.on_alert(message)
        self._failing = True

    def _commit(self, step: int, data: bytes, meta: dict[str, Any], score: float | None) -> Path:
        committed = self._manifests(quiet=True)
        # A step that is saved again gets another file name: the file that its manifest still names must not change.
        names = {f"step-{step}.safetensors", f"step-{step}.1.safetensors"} - {m.file for m in committed}
        file = min(names, key=len)
        manifest = Manifest(
            sha256=files.UNSEALED,
            format=FORMAT,
            step=step,
            serial=1 + max((m.serial for m in committed), default=-1),
            file=file,
            size=len(data),
            file_sha256=hashlib.sha256(data).hexdigest(),
            score=score,
            saved_at=time.time(),
            meta=meta,
        )
        document = files.seal(files.pretty(manifest))
        try:
            files.write_atomically(self.folder / file, data)
            files.write_atomically(self._path(step), document)
        except OSError:
            if not self._names(file):
                (self.folder / file).unlink(missing_ok=True)
            raise
        return self._path(step)

    def _point_at_best(self) -> None:
        scored = [m for m in self._manifests(quiet=True) if m.score is not None]
        if not scored:
            return
        best = max(scored, key=_rank)
        now = self._read_best()
        if now is None or (now.step, now.score) != (best.step, best.score):
            pointer = Best(sha256=files.UNSEALED, step=best.step, score=_rank(best)[0])
            files.write_atomically(self.folder / "best.json", files.seal(files.pretty(pointer)))

    def _names(self, file: str) -> bool:
        return any(m.file == file for m in self._manifests(quiet=True))

    def _prune(self) -> None:
        committed = self._manifests(quiet=True)
        best = self._read_best()
        kept = {m.step for m in committed[: self.keep]} | ({best.step} if best else set())
        for manifest in committed:
            if manifest.step not in kept:
                # The manifest goes first: a kill in between leaves a nameless file, never a manifest without its file.
                self._path(manifest.step).unlink(missing_ok=True)
                (self.folder / manifest.file).unlink(missing_ok=True)
        named = {m.file for m in committed}
        whole = {m.step for m in committed}
        for entry in os.listdir(self.folder):
            match = _DATA.fullmatch(entry)
            if match is None or entry in named:
                continue
            # The file beside a damaged manifest stays: a user may still want its contents.
            if int(match[1]) in whole or not self._path(int(match[1])).exists():
                (self.folder / entry).unlink(missing_ok=True)

    # Loading

    def steps(self) -> list[int]:
        """The steps of all checkpoints with an intact manifest, newest first."""
        return [m.step for m in self._manifests(quiet=True)]

    def metas(self) -> list[dict[str, Any]]:
        """The `meta` of all checkpoints with an intact manifest, newest first."""
        return [m.meta for m in self._manifests(quiet=True)]

    def load(self, which: str | int | Path = "last") -> Loaded:
        """Load a checkpoint: `last`, `best`, a step, or a path (to either file).

        A damaged checkpoint is reported through `on_alert`, and the one before it is loaded. Raises `BadInput` if none is
        left, or if `best` is requested and none has a score.
        """
        candidates = self._manifests(quiet=False)
        if which == "best":
            best = self._best_of(candidates)
            if best is None and candidates:
                raise BadInput(
                    f"no best checkpoint in {str(self.folder)!r}: none was saved after a full window of episodes;"
                    " load the last"
                )
            candidates = [m for m in candidates if m.step == best] + [m for m in candidates if m.step != best]
        elif which != "last":
            step = self._step_of(which)
            at = next((i for i, m in enumerate(candidates) if m.step == step), None)
            if at is not None:
                candidates = candidates[at:]
            elif not self._path(step).exists():
                there = ", ".join(str(s) for s in sorted(self.steps())) or "none"
                raise BadInput(f"no checkpoint of step {step} in {str(self.folder)!r}; there are: {there}")
            else:  # it is there and damaged, as was just reported
                candidates = [m for m in candidates if m.step < step]
        for manifest in candidates:
            try:
                arrays = self._read_data(manifest)
            except Corrupt as error:
                self.on_alert(f"checkpoint {self.folder / manifest.file} is damaged: {error}; trying the one before")
                continue
            return Loaded(manifest.step, arrays, manifest.meta, self._path(manifest.step))
        raise BadInput(f"no checkpoint to resume in {str(self.folder)!r}")

    def _step_of(self, which: str | int | Path) -> int:
        if isinstance(which, int):
            return which
        name, parent = Path(which).name, Path(which).parent
        if parent != Path() and parent.resolve() != self.folder.resolve():
            raise BadInput(f"checkpoint {str(which)!r} is not in {str(self.folder)!r}")
        match = _MANIFEST.fullmatch(name) or _DATA.fullmatch(name) or re.fullmatch(r"(?:step-)?(\d+)", name)
        if match is None:
            raise BadInput(f"checkpoint {str(which)!r} is none of: last, best, a step, a file step-N.safetensors")
        return int(match[1])

    def _best_of(self, candidates: list[Manifest]) -> int | None:
        best = self._read_best(quiet=False)
        if best is not None:
            return best.step
        scored = [m for m in candidates if m.score is not None]
        return max(scored, key=_rank).step if scored else None

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}.json"

    def _manifests(self, *, quiet: bool) -> list[Manifest]:
        """The intact manifests, newest first; each damaged one raises an alert unless `quiet`."""
        found: list[Manifest] = []
        for entry in os.listdir(self.folder) if self.folder.is_dir() else ():
            match = _MANIFEST.fullmatch(entry)
            if match is None:
                continue
            try:
                manifest = _read(self.folder / entry, Manifest)
                if manifest.format != FORMAT:
                    raise Corrupt(f"its format is {manifest.format}; this version reads {FORMAT}")
                if manifest.step != int(match[1]):
                    raise Corrupt(f"it is the manifest of step {manifest.step}")
                found.append(manifest)
            except Corrupt as error:
                if not quiet:
                    self.on_alert(f"checkpoint {self.folder / entry} is damaged: {error}; passing over it")
        return sorted(found, key=lambda m: m.serial, reverse=True)

    def _read_best(self, *, quiet: bool = True) -> Best | None:
        path = self.folder / "best.json"
        if not path.exists():
            return None
        try:
            return _read(path, Best)
        except Corrupt as error:
            if not quiet:
                self.on_alert(f"{path} is damaged: {error}; looking for the best score in the manifests")
            return None

    def _read_data(self, manifest: Manifest) -> dict[str, np.ndarray]:
        try:
            data = (self.folder / manifest.file).read_bytes()
        except OSError as error:
            raise Corrupt(error.strerror or str(error)) from None
        if len(data) != manifest.size:
            raise Corrupt(f"it has {len(data)} bytes, not {manifest.size}")
        if hashlib.sha256(data).hexdigest() != manifest.file_sha256:
            raise Corrupt("its SHA-256 does not match")
        return tensors.decode(data)


def _finite(score: float | None) -> float | None:
    return float(score) if score is not None and math.isfinite(score) else None


def _rank(manifest: Manifest) -> tuple[float, int]:
    """Sort key: higher is better; of equal scores the newer checkpoint wins, which has trained longer."""
    return (-math.inf if manifest.score is None else manifest.score, manifest.serial)


def _read(path: Path, kind: type[S]) -> S:
    try:
        data = path.read_bytes()
        files.check_seal(data)
        return msgspec.json.decode(data, type=kind)
    except OSError as error:
        raise Corrupt(error.strerror or str(error)) from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(str(error)) from None
