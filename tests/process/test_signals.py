"""SIGINT and SIGTERM: once asks, twice insists, and afterwards all is as before."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from shoal.process.signals import StopRequest

STAY = 120  # seconds of a loop that only a second signal ends in time
IGNORE = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
LOOP = """
import sys, time
sys.path[:] = %r
from shoal.process.signals import StopRequest
with StopRequest() as stop:
    stop.on_abort(lambda: print("older", flush=True))
    stop.on_abort(lambda: 1 / 0)
    stop.on_abort(lambda: print("newer", flush=True))
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print("asked", stop.why, flush=True)
    if len(sys.argv) > 1:
        time.sleep(%r)
print("saved")
"""


def start(*args: str, ignore: bool = False) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", (IGNORE if ignore else "") + LOOP % (sys.path, STAY), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_ends_the_loop_and_says_so(number: signal.Signals) -> None:
    child = start(ignore=True)  # as shells start background jobs
    child.send_signal(number)
    out, error = child.communicate(timeout=STAY / 2)
    assert child.returncode == 0 and out == "asked stopped\nsaved\n"
    assert error == "stopping after this update: checkpointing (again to exit now)\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_twice_exits_at_once_after_the_callbacks(number: signal.Signals, code: int) -> None:
    child = start("stay")
    child.send_signal(signal.SIGINT)
    assert child.stdout is not None and child.stdout.readline() == "asked stopped\n"
    child.send_signal(number)
    out, error = child.communicate(timeout=STAY / 2)
    assert child.returncode == code
    assert out == "newer\nolder\n" and "ZeroDivisionError" in error


def test_a_pause_asks_and_never_insists() -> None:
    child = start("stay")
    for _ in range(3):
        child.send_signal(signal.SIGUSR1)
    assert child.stdout is not None and child.stdout.readline() == "asked paused\n"
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):  # the second of the latter insists
        child.send_signal(number)
    _, error = child.communicate(timeout=STAY / 2)
    assert child.returncode in (130, 143)
    assert error.startswith("pausing after this update: checkpointing\n")


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest() as stop:
        assert stop.active and signal.getsignal(signal.SIGINT) == stop._handle
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not stop.active


def test_a_request_from_within_is_not_the_first_signal(capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest() as stop:
        stop.request()
        signal.raise_signal(signal.SIGINT)  # must not exit
    assert stop.requested and "again to exit now" in capfd.readouterr().err


def test_outside_the_main_thread_it_is_inactive() -> None:
    seen: list[bool] = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append(stop.active)
            stop.request()
            seen.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]
