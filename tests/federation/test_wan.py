"""A parent and a child on a bad wide area network: delays of 100 +- 25 ms each way, 5 % loss, and a cut.

Nothing hangs, every push counts exactly once, and training goes on during the cut and after it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from families import A2C, CHILD, RUN, Unhurried
from wan import PARENT, SELF, Wan, unavailable

from shoal.federation import Parent, child, join
from shoal.federation.addresses import fingerprint_of
from shoal.federation.child import Joined
from shoal.federation.courier import Courier
from shoal.federation.settings import FederationConfig
from shoal.federation.token_files import read_token
from shoal.process.openssl import make_certificate

PATIENCE = 200.0  # seconds for what is certain to come, on however busy a machine
BAD = {"delay": 0.1, "jitter": 0.025, "loss": 0.05}


@pytest.fixture
def possible() -> None:
    if missing := _missing():
        pytest.skip(missing)


@cache
def _missing() -> str:
    return unavailable()


class Remembered(Courier):
    """A child's courier that the test can ask."""

    made: ClassVar[list[Remembered]] = []

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.made.append(self)


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


@pytest.mark.usefixtures("possible")
def test_packets_are_delayed_and_cut() -> None:
    home = os.readlink(SELF)
    with Wan(delay=0.1, jitter=0.025) as wan:
        with wan.inside("parent"), socket.create_server((PARENT, 0)) as server:
            with wan.inside("child"):
                began = time.monotonic()
                one = socket.create_connection(server.getsockname(), timeout=PATIENCE)
            assert time.monotonic() - began >= 0.15  # there and back
            other, _ = server.accept()
            with one, other, wan.cut():
                one.sendall(b"in the cut")
                until(lambda: wan.swallowed > 0, "the packet reached the cut")
                other.setblocking(False)
                with pytest.raises(BlockingIOError):
                    other.recv(64)
        assert wan.passed > 0 and wan.lost == 0
    assert os.readlink(SELF) == home, "out of it again"


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(
    ("seconds", "encoding"),
    [
        pytest.param(7.0, "float32", id="a cut of seconds"),
        pytest.param(60.0, "float32", id="a cut of a minute", marks=pytest.mark.slow),
        pytest.param(60.0, "int8", id="a cut of a minute, differences", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(900)
def test_training_goes_on(seconds: float, encoding: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Unhurried.steps = 0
    monkeypatch.setattr(Remembered, "made", [])
    monkeypatch.setattr(child, "Courier", Remembered)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key, [PARENT], 2)
    federation = FederationConfig(every_updates=1, eval_every=0, encoding=encoding)
    about: Any = {**RUN, "algo": A2C, "steps": 10**9, "federation": federation}
    joined: list[Joined] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def guarded(action: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                action()
            except BaseException as error:
                failures.append(error)
                over.set()

        return threading.Thread(target=run)

    with Wan(**BAD) as wan, wan.inside("parent"):
        parent = Parent("families:Unhurried", out=tmp_path / "parent", bind=f"{PARENT}:0", cert=cert, key=key, **about)
        with parent:
            hub = parent.hub

            def train() -> None:
                with wan.inside("child"):
                    secret, pin = read_token(parent.token_file), fingerprint_of(cert)
                    where = {"out": tmp_path / "child", "name": "far", "settings": CHILD}
                    joined.append(join(parent.url, token=secret, pin=pin, trust=True, quiet=True, **where))  # type: ignore[arg-type]

            def story() -> None:
                def pushes() -> int:
                    if failures:
                        raise failures[0]
                    return hub.state.pushes

                until(lambda: pushes() >= 5, "the first pushes")
                with wan.cut():
                    before, steps, began = pushes(), Unhurried.steps, time.monotonic()
                    until(lambda: Unhurried.steps > steps + 20, "training goes on during the cut")
                    until(lambda: wan.swallowed > 0, "the child tried")
                    time.sleep(max(0.0, began + seconds - time.monotonic()))
                    assert pushes() <= before + 1, "one push at most had arrived and was not counted yet"
                steps = Unhurried.steps
                until(lambda: pushes() > before + 4, "the child came back")
                until(lambda: Unhurried.steps > steps + 20, "training goes on after the cut")
                parent._serving.call(lambda: setattr(hub, "stop", True))
                training.join(PATIENCE)
                assert not training.is_alive(), "the child never heard of the end"
                over.set()

            training, telling = guarded(train), guarded(story)
            parent._over_outside = over.is_set
            training.start()
            telling.start()
            summary = parent.run()
            telling.join()
    if failures:
        raise failures[0]
    known, courier = hub.state.children["far"], Remembered.made[-1]
    # Each number was given to one push, and each was applied once; the last one may have come after the end.
    assert known.sequence == known.pushes == hub.state.pushes == summary["exchanges"]
    assert courier._sequence - known.sequence in (0, 1) and not courier.open
    assert joined[0].exchanges in (known.pushes, known.pushes + 1)
    assert known.steps % (CHILD["envs"] * A2C["unroll"]) == 0 and known.steps <= joined[0].result.summary["env_steps"]  # type: ignore[operator]
    assert summary["rejected"] == 0 and wan.lost > 0
    if seconds >= 60:
        assert joined[0].rejoined >= 1
