"""Shoal's own commands in processes of their own, one at a time: nothing of a run is left in the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

GRACE = 15.0  # seconds that an interrupted command has to write its checkpoint
# The kernel ends the command if we are killed; being a process's own wish, it outlives the exec that follows.
_ENTRY = """
import ctypes, os, signal, sys
library = ctypes.CDLL(None)
if hasattr(library, "prctl"):
    library.prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "shoal", *sys.argv[2:]])
"""


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The last line of standard error: where a command says in one line why it refused or failed."""
        lines = self.err.strip().splitlines()
        return lines[-1].removeprefix("shoal: ") if lines else f"it ended with code {self.code} and no word"


def run_command(words: Sequence[str]) -> Finished:
    """`shoal WORDS ...`, to its end. An interrupt or SIGTERM here is handed on, and raised once the command has ended."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", _ENTRY, str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            process_group=0,  # a terminal's Ctrl-C comes through us: once, and in order
        )
        try:
            out, err = child.communicate()
        except BaseException:
            child.send_signal(signal.SIGINT)
            try:
                child.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return Finished(child.returncode, out, err)
