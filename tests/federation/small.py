"""A small device on this machine: a control group with little memory and half a core, version 1 or 2, for root.

Without one, the same program runs on one core, and only its memory is measured: a limit of addresses (`ulimit -v`) is no
substitute, since JAX reserves far more of them than it uses.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds
# Enters the groups, then is `python -m shoal WORDS ...`; writes the peak of its memory to a file when it ends.
ENTRY = """
import atexit, os, pathlib, runpy, sys
*groups, peak = sys.argv[1].split(os.pathsep)
if not groups:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for group in groups:
    pathlib.Path(group, "cgroup.procs").write_text(str(os.getpid()))
def keep(path=pathlib.Path(peak)):
    status = pathlib.Path("/proc/self/status").read_text()
    path.write_text(status.partition("VmHWM:")[2].split()[0])
def leave(code, leave=os._exit):
    keep()
    leave(code)
atexit.register(keep)
os._exit = leave
sys.argv = ["shoal", *sys.argv[2:]]
runpy.run_module("shoal", run_name="__main__", alter_sys=True)
"""


class Small:
    """`with Small(megabytes=512, cores=0.5) as device:`; `limited` says whether a group could be made."""

    def __init__(self, *, megabytes: int, cores: float) -> None:
        self._bytes, self._quota = megabytes * 2**20, int(cores * PERIOD)
        self.groups: list[Path] = []
        self.how = ""

    @property
    def limited(self) -> bool:
        return bool(self.groups)

    def __enter__(self) -> Self:
        name = f"shoal-{os.getpid()}-{time.monotonic_ns()}"
        try:
            if (ROOT / "cgroup.controllers").exists():
                self._version_2(ROOT / name)
            else:
                self._version_1(ROOT / "memory" / name, ROOT / "cpu" / name)
        except OSError as error:
            self._remove()
            self.how = f"measured only: no control group ({error})"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def words(self, peak: Path, *words: str) -> list[str]:
        """The command that runs `shoal WORDS ...` here, and leaves its peak memory in kB in a file."""
        return [sys.executable, "-c", ENTRY, os.pathsep.join(map(str, [*self.groups, peak])), *words]

    @property
    def killed(self) -> int:
        """Processes that the kernel ended because they needed more memory."""
        if not self.limited:
            return 0
        file = "memory.events" if self.how == "cgroup v2" else "memory.oom_control"
        counts = dict(line.split() for line in (self.groups[0] / file).read_text().splitlines())
        return int(counts.get("oom_kill", 0))

    def _version_1(self, memory: Path, cpu: Path) -> None:
        self.how = "cgroup v1"
        for group in (memory, cpu):
            group.mkdir()
            self.groups.append(group)
        (memory / "memory.limit_in_bytes").write_text(str(self._bytes))
        with contextlib.suppress(OSError):  # without a limit for swap, where the kernel counts none
            (memory / "memory.memsw.limit_in_bytes").write_text(str(self._bytes))
        (cpu / "cpu.cfs_period_us").write_text(str(PERIOD))
        (cpu / "cpu.cfs_quota_us").write_text(str(self._quota))

    def _version_2(self, group: Path) -> None:
        self.how = "cgroup v2"
        with contextlib.suppress(OSError):  # they may be on already, and a container may not change it
            (ROOT / "cgroup.subtree_control").write_text("+memory +cpu")
        group.mkdir()
        self.groups.append(group)
        (group / "memory.max").write_text(str(self._bytes))
        with contextlib.suppress(OSError):
            (group / "memory.swap.max").write_text("0")
        (group / "cpu.max").write_text(f"{self._quota} {PERIOD}")

    def _remove(self) -> None:
        for group in self.groups:
            with contextlib.suppress(OSError):
                group.rmdir()
        self.groups = []
