"""Guarded processes: requests are answered, newer ones win, and whatever ends the process is known."""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import termios
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from shoal.runtimes import guarded
from shoal.runtimes.guarded import OUTSIDE, CannotSend, Guarded, Mark, wait_for_any

LIMIT = 60.0  # seconds that nothing here takes on a machine that works


def answer(request: bytes, mark: Mark) -> Iterator[bytes]:
    """Does what it is told, in calls of number 7."""
    if request == b"count":
        number = 0
        while True:
            yield b"%d" % number
            number += 1
    if request == b"raise":
        raise ValueError("no such thing")
    yield b"got " + request
    mark(7)
    if request == b"hang":
        ctypes.PyDLL(None).sleep(10_000)  # with Python's lock
    if request == b"crash":
        os._exit(5)
    mark(OUTSIDE)
    yield b"x" * 3_000_000


@pytest.fixture
def started() -> Iterator[Callable[..., Guarded]]:
    made: list[Guarded] = []

    def start(timeout: float = LIMIT, gently: bool = False) -> Guarded:
        made.append(Guarded(answer, timeout=timeout, gently=gently))
        return made[-1]

    yield start
    for process in made:
        process.close()
        process.close()  # twice is once
        assert process._process.poll() is not None


def heard(process: Guarded, holds: Callable[[list[bytes]], bool]) -> list[bytes]:
    """What it says until `holds` is true of it, or the process is gone."""
    said: list[bytes] = []
    limit = time.monotonic() + LIMIT
    while not holds(said):
        said += process.hear(0.1)
        if process.gone is not None:
            break
        assert time.monotonic() < limit, said
    return said


@pytest.mark.parametrize("gently", [False, True])
def test_requests_of_any_size_are_answered_and_a_newer_one_ends_the_older(
    started: Callable[..., Guarded], gently: bool
) -> None:
    process = started(gently=gently)
    process.ask(b"count")
    assert heard(process, lambda said: len(said) >= 3)[:3] == [b"0", b"1", b"2"]
    large = b"y" * 2_000_000  # more than a pipe holds
    process.ask(large)
    said = heard(process, lambda said: len(said) == 2)
    assert said == [b"got " + large, b"x" * 3_000_000] and process.gone is None
    process.ask(b"raise")
    heard(process, lambda said: False)
    assert process.gone is not None and process.gone.kind == "bug"
    assert process.gone.detail.splitlines()[-1] == "ValueError: no such thing"


def test_a_call_that_ends_the_process_is_known(started: Callable[..., Guarded]) -> None:
    process = started()
    process.ask(b"crash")
    assert heard(process, lambda said: False) == [b"got crash"], "what it said before is heard"
    assert process.gone is not None and (process.gone.kind, process.gone.which) == ("died", 7)
    assert process.gone.detail == "exited with code 5" and list(process.hear()) == []


def test_a_call_that_does_not_return_is_noticed_even_with_pythons_lock(started: Callable[..., Guarded]) -> None:
    process = started(timeout=0.5)
    process.ask(b"hang")
    heard(process, lambda said: False)
    assert process.gone is not None and (process.gone.kind, process.gone.which) == ("hung", 7)
    assert "did not return" in process.gone.detail


def test_what_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()

    def holds_it(request: bytes, mark: Mark) -> Iterator[bytes]:
        with lock:
            yield request

    with pytest.raises(CannotSend, match="pickle"):
        Guarded(holds_it, timeout=LIMIT)


def test_a_late_listener_does_not_take_a_process_for_one_that_did_not_start(
    started: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started()
    process.ask(b"something")
    arrived = array.array("i", [0])
    while arrived[0] < 100:  # bytes: that it is ready, and its answer
        wait_for_any([process], LIMIT)
        fcntl.ioctl(process._messages, termios.FIONREAD, arrived)
    monkeypatch.setattr(guarded, "START_TIMEOUT", 0.0)
    process._timeout = 0.0
    assert next(iter(process.hear())) == b"got something" and process.gone is None
    list(process.hear())
    assert process.gone is None
