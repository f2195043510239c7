"""Limits that control groups set on this process's cores and memory, as containers and job schedulers do.

Both cgroup versions are read, and every group from this process's own up to the root of the mount: the tightest limit holds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class Group(NamedTuple):
    """A control group's folder and its cgroup version."""

    folder: Path
    version: int


def cores() -> int:
    """The number of cores that this process may use, by affinity and by its quota of CPU time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = core_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def core_quota(root: Path | None = None) -> float | None:
    """CPU time that this process may use, in cores; None without a limit."""
    quotas = [quota for group in _groups("cpu", root or ROOT) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def memory_left(root: Path | None = None) -> int | None:
    """Bytes until a limit is reached, counting droppable file pages as free; None without a limit."""
    left = [bytes_left for group in _groups("memory", root or ROOT) if (bytes_left := _left(group)) is not None]
    return max(0, min(left)) if left else None


def _quota(group: Group) -> float | None:
    if group.version == 2:
        words = _read(group.folder / "cpu.max").split()
    else:
        words = [_read(group.folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:  # max or -1
        return None
    return int(words[0]) / int(words[1])


def _left(group: Group) -> int | None:
    if group.version == 2:
        names, idle = ("memory.max", "memory.current"), "inactive_file"
    else:
        names, idle = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"
    limit, used = (_read(group.folder / name) for name in names)
    if not limit.isdigit() or not used.isdigit():
        return None
    rows = [line.split() for line in _read(group.folder / "memory.stat").splitlines()]
    droppable = next((int(row[1]) for row in rows if len(row) == 2 and row[0] == idle), 0)
    return int(limit) - int(used) + min(droppable, int(used))


def _groups(controller: str, root: Path) -> Iterator[Group]:
    """The groups that limit this process, from its own outwards."""
    own: dict[str, str] = {}  # {controller: path of this process's group}; "" stands for version 2
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version is None or (version == 1 and controller not in options.split(",")):
            continue
        mine = own.get("" if version == 2 else controller)
        if mine is None:
            continue
        top, mount = before.split(" ")[3:5]
        # A container may see its own group as the top of the mount, while the path is given from the machine's root.
        inner = Path(mine).relative_to(top) if Path(mine).is_relative_to(top) else Path()
        folder = root / mount.lstrip("/")
        yield from (Group(folder / at, version) for at in (inner, *inner.parents))


def _read(path: Path) -> str:
    """A file's text, stripped; empty if it is missing or cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
