"""The run folder: creating it, opening it, and the files in it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import time
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.errors import BadInput
from shoal.process.limits import cores
from shoal.run import files

_PACKAGES = ("jax", "jaxlib", "optax", "numpy", "gymnasium", "envpool", "ale-py", "msgspec", "safetensors")


class RunFolder:
    """Paths of one run. `create` makes a new folder, `open` finds an existing one."""

    def __init__(self, path: Path, checkpoint: Path | None = None, made: tuple[Path, ...] = ()) -> None:
        self.path = path
        self._made = made  # the folders that `create` had to make, outermost first
        self.checkpoint = checkpoint  # the one that `open` was pointed at, if any
        self.config_path = path / "config.json"
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.policy_path = path / "policy.safetensors"
        self.summary_path = path / "summary.json"
        self.evaluation_path = path / "evaluation.json"
        self.report_path = path / "report.html"
        self.video_path = path / "video.mp4"

    @classmethod
    def create(cls, path: Path | str | None, env: str, algo: str, topology: str) -> RunFolder:
        """Make a new, writable folder: `path`, or `runs/<env>-<algo>-<topology>-<stamp>`. `BadInput` leaves no folder."""
        if path is None:
            stem = Path("runs") / f"{_plain(env)}-{_plain(algo)}-{_plain(topology)}-{time.strftime('%Y%m%d-%H%M%S')}"
            count = 1
            while True:
                path = stem if count == 1 else stem.with_name(f"{stem.name}-{count}")
                made = _make(path, taken_if_empty=True)  # it may be empty because another run has just made it
                if made is not None:
                    return cls(path, made=made)
                count += 1
        path = Path(path)
        made = _make(path)
        if made is None:
            _refuse_used(path)
        return cls(path, made=made or ())

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open an existing run by its folder or by a file in it. Raises `BadInput` if it is not a run."""
        given = Path(path)
        if not given.exists():
            raise BadInput(f"there is no run {str(path)!r}")
        folder, chosen = given, None
        if given.is_file():
            folder = given.parent
            chosen = given if folder.name == "checkpoints" else None
        if folder.name == "checkpoints":
            folder = folder.parent
        if (folder / "config.json").is_file():
            return cls(folder, chosen)
        raise BadInput(f"{str(path)!r} is not a run folder: it has no config.json")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write `config` with the versions and the hardware it ran on, under `machine`."""
        files.write_atomically(self.config_path, files.pretty({**config, "machine": describe_machine()}))

    def amend_config(self, **changes: Any) -> None:
        """Write `config.json` again with these entries, unless it has them already."""
        config = read_json(self.config_path)
        if config != config | changes:
            self.write_json(self.config_path, config | changes)

    def read_config(self) -> dict[str, Any]:
        """The config, including `machine`. Raises `BadInput` if the file holds no JSON object."""
        config = read_json(self.config_path)
        algo = config.get("algo")
        if isinstance(algo, dict) and algo.get("name") in ("dqn", "dyna_q") and algo.get("entropy") == 0.0:
            del algo["entropy"]  # older versions wrote it, and it could only be 0
        return config

    def discard(self) -> None:
        """Undo `create`, so that a refused run leaves nothing behind."""
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.remove_if_empty()

    def remove_if_empty(self) -> None:
        """Remove the folders that `create` made, unless there is something in them."""
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # there is a file in it
                folder.rmdir()

    def log(self, text: str) -> str | None:
        """Append `text` to `faults.log`, with the time. Returns the reason if that cannot be written."""
        try:
            with (self.path / "faults.log").open("a") as file:
                file.write(f"{time.strftime('%F %T')} {text}\n\n")
        except OSError as error:
            return error.strerror
        return None

    def write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        """Write a JSON file of the folder atomically."""
        files.write_atomically(path, files.pretty(dict(document)))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `BadInput` if it cannot be read or holds anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(path)!r} must hold a JSON object: {error}") from None
    except RecursionError:
        raise BadInput(f"{str(path)!r} must hold a JSON object: it is nested too deeply") from None


def ways(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of `evaluation.json`: the latest `greedy` and the latest `sampled` evaluation."""
    if "returns" in evaluation:  # older versions stored one evaluation only
        return {"greedy" if evaluation.get("greedy", True) else "sampled": dict(evaluation)}
    return dict(evaluation)


def _plain(name: str) -> str:
    """`name` without characters that are special to a file system or a shell."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", name).strip("._") or "x"


def _make(path: Path, *, taken_if_empty: bool = False) -> tuple[Path, ...] | None:
    """Make `path` and check that it is writable. Returns the folders that had to be made, or None if it is in use already."""
    made: list[Path] = []
    try:
        for folder in [*reversed(path.parents), path]:
            if folder.exists():
                continue
            try:
                folder.mkdir()
            except FileExistsError:  # another run was quicker
                continue
            made.append(folder)
            files.sync_directory(folder.parent)
        if path not in made and (taken_if_empty or not path.is_dir() or any(path.iterdir())):
            return None
        probe = path / ".writable"
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        for folder in reversed(made):
            folder.rmdir()
        raise BadInput(f"cannot write the run folder {str(path)!r}: {error.strerror or error}") from None
    return tuple(made)


def _refuse_used(path: Path) -> None:
    if not path.is_dir():
        raise BadInput(f"the run folder {str(path)!r} is a file; name a new folder")
    what = "a run (continue it with --resume)" if (path / "config.json").exists() else "files"
    raise BadInput(f"the run folder {str(path)!r} already holds {what}; name a new or an empty one")


def describe_machine() -> dict[str, Any]:
    """Package versions and hardware, found without importing the packages."""
    return {
        "versions": dict(_versions()),
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gb": _memory_gb(),
        "platform": platform.platform(),
    }


@cache
def _versions() -> dict[str, str]:
    from shoal import __version__

    versions = {"python": platform.python_version(), "shoal": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # not POSIX
        return None
