"""Limits of control groups, on trees of files like the kernel's."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from shoal.process import device, limits

GIB = 2**30
V1 = "{0} 31 0:29 {1} /sys/fs/cgroup/{2} rw,relatime - cgroup cgroup rw,{2}\n"


def tree(root: Path, group: str, mounts: str, files: dict[str, object]) -> Path:
    """A root folder with what /proc says of this process, and files under /sys/fs/cgroup."""
    written = {"proc/self/cgroup": group, "proc/self/mountinfo": f"23 1 8:1 / / rw - ext4 /dev/sda rw\n{mounts}"}
    written |= {f"sys/fs/cgroup/{name}": f"{value}\n" for name, value in files.items()}
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def second(root: Path, files: dict[str, object], path: str = "/job/step") -> Path:
    return tree(root, f"0::{path}\n", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", files)


def first(root: Path, files: dict[str, object], path: str = "/job", top: str = "/") -> Path:
    group = f"4:memory:{path}\n2:cpu,cpuacct:{path}\n"
    return tree(root, group, V1.format(32, top, "cpu,cpuacct") + V1.format(33, top, "memory"), files)


def test_version_2_the_tightest_of_nested_groups_holds(tmp_path: Path) -> None:
    files = {
        "job/step/cpu.max": "max 100000",
        "job/cpu.max": "150000 100000",
        "cpu.max": "400000 100000",
        "job/step/memory.max": 4 * GIB,
        "job/step/memory.current": GIB,
        "job/memory.max": 5 * GIB,
        "job/memory.current": 3 * GIB,
        "memory.max": "max",
        "memory.current": 9 * GIB,
    }
    root = second(tmp_path, files)
    assert limits.core_quota(root) == 1.5
    assert limits.memory_left(root) == 2 * GIB


def test_pages_that_can_be_dropped_count_as_free(tmp_path: Path) -> None:
    files = {"memory.max": 4 * GIB, "memory.current": 3 * GIB, "memory.stat": f"anon 5\ninactive_file {2 * GIB}"}
    assert limits.memory_left(second(tmp_path, files, "/")) == 3 * GIB


def test_version_1_and_a_container_that_sees_its_group_as_the_top(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": 250000,
        "cpu,cpuacct/cpu.cfs_period_us": 100000,
        "memory/memory.limit_in_bytes": 2 * GIB,
        "memory/memory.usage_in_bytes": GIB,
        "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}",
    }
    for name, path, top in (("plain", "/", "/"), ("container", "/docker/abc", "/docker/abc"), ("other", "/x", "/y")):
        root = first(tmp_path / name, files, path, top)
        assert limits.core_quota(root) == 2.5, name
        assert limits.memory_left(root) == GIB + GIB // 2, name


def test_no_limit_is_none(tmp_path: Path) -> None:
    assert limits.core_quota(tmp_path) is None and limits.memory_left(tmp_path) is None
    root = second(tmp_path / "v2", {"job/cpu.max": "max 100000", "job/memory.max": "max", "job/memory.current": 5})
    assert limits.core_quota(root) is None and limits.memory_left(root) is None
    unlimited = {"cpu,cpuacct/job/cpu.cfs_quota_us": -1, "cpu,cpuacct/job/cpu.cfs_period_us": 100000}
    assert limits.core_quota(first(tmp_path / "v1", unlimited)) is None


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    assert limits.memory_left(second(tmp_path, {"memory.max": GIB, "memory.current": 2 * GIB})) == 0


def test_cores_and_memory_respect_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, free = len(os.sched_getaffinity(0)) / 2 - 0.25, 3 * 2**20
    files = {"cpu.max": f"{int(few * 100000)} 100000", "memory.max": GIB, "memory.current": GIB - free}
    monkeypatch.setattr(limits, "ROOT", second(tmp_path, files, "/"))
    assert limits.cores() == max(1, math.ceil(few))
    assert device.available_memory() == free
