"""The end of a process in which threads of a closed session still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONTRACTS = Path(__file__).parents[1] / "contracts"
SCRIPT = """
import sys, time
sys.path.insert(0, {contracts!r})
from functools import partial
import timed_roles
from shoal.runtimes import threads

class Slow(timed_roles.Slow):
    def close(self):
        print("closed", flush=True)

class Busy(Slow):
    "Computes on and on, and never looks whether to end."
    def run(self):
        self._context.env(True)
        while True:
            time.sleep(0.01)
        yield

threads.JOIN, threads.LEAVE = 0.1, {leave}
slow = partial({role}, "env", {seconds})
session = threads.Threads(threads.ThreadsConfig(step_timeout=0.2)).start(timed_roles.program(slow), lambda: False)
try:
    next(iter(session))
except Exception as error:
    {then}
finally:
    session.close()
"""


def leave(seconds: float, limit: float, role: str = "Slow", then: str = "raise") -> subprocess.CompletedProcess[str]:
    code = SCRIPT.format(contracts=str(CONTRACTS), seconds=seconds, leave=limit, role=role, then=then)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_a_thread_that_comes_back_ends_before_the_interpreter_does() -> None:
    done = leave(3.0, 60.0)
    assert done.returncode == 1 and "RunFailed" in done.stderr, done.stderr
    assert done.stdout == "closed\n", "its role was closed: it did not vanish with the interpreter"


def test_a_thread_that_computes_is_interrupted_and_the_exit_code_is_the_scripts_own() -> None:
    done = leave(0.0, 60.0, role="Busy", then="sys.exit(3)")
    assert done.returncode == 3 and not done.stderr, done.stderr
    assert done.stdout == "closed\n"


def test_the_process_leaves_without_a_thread_that_hangs() -> None:
    done = leave(1000.0, 0.2)
    assert done.returncode == 1 and "RunFailed" in done.stderr, done.stderr
    assert done.stderr.endswith("shoal: slow still hangs: exiting without waiting for it\n") and done.stdout == ""
