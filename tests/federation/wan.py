"""A wide area network on one machine: two network namespaces, joined by TUN devices that delay, drop and cut real IP packets.

Needs Linux and root, neither netem nor iproute2. A namespace lives as long as its descriptors: whatever ends the process, nothing
is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

PARENT, CHILD = "10.99.0.1", "10.99.0.2"
TUN, SELF = "/dev/net/tun", "/proc/thread-self/ns/net"
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
IFF_UP, IFF_RUNNING = 0x1, 0x40
LONGEST = 65536  # bytes of a packet


def unavailable() -> str:
    """What is missing here for such a network; empty if nothing is."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces need Linux, not {sys.platform}"
    if os.geteuid() != 0:
        return f"network namespaces need root; this is user {os.geteuid()}"
    if not os.path.exists(TUN):
        return f"there is no {TUN}: the kernel has no TUN devices, or this container is not given them"
    try:
        with Wan():
            return ""
    except OSError as error:
        return f"no network namespace with a TUN device could be made: {error}"


class Side(NamedTuple):
    """One end: descriptors of its namespace and of its device."""

    namespace: int
    device: int


def _call(name: str, *arguments: Any) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _up(link: str, address: str = "") -> None:
    """Give a network device its address and switch it on, in the namespace of this thread."""
    name = link.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
            if address:
                where = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, where)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", name, IFF_UP | IFF_RUNNING))


def _made(address: str) -> Side:
    """A namespace with a loopback and a TUN device. On a thread of its own, which takes the namespace with it when it ends."""
    found: list[Side | OSError] = []

    def make() -> None:
        held: list[int] = []
        try:
            _call("unshare", CLONE_NEWNET)
            held.append(os.open(SELF, os.O_RDONLY))
            held.append(os.open(TUN, os.O_RDWR | os.O_NONBLOCK))
            fcntl.ioctl(held[1], TUNSETIFF, struct.pack("16sH14x", b"wan0", IFF_TUN | IFF_NO_PI))
            _up("lo")
            _up("wan0", address)
            found.append(Side(*held))
        except OSError as error:
            for descriptor in held:
                os.close(descriptor)
            found.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


class Wan:
    """`with Wan(delay=0.1, jitter=0.025, loss=0.05) as wan:`; seconds and a share, in each direction."""

    def __init__(self, *, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        self._delay, self._jitter, self._loss, self._random = delay, jitter, loss, random.Random(seed)
        self.passed = self.lost = self.swallowed = 0  # packets: delivered, dropped by chance, sent during a cut
        self._cut = self._over = False
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        parent = _made(PARENT)
        try:
            child = _made(CHILD)
        except OSError:
            for descriptor in parent:
                os.close(descriptor)
            raise
        self._sides = {"parent": parent, "child": child}
        self._thread = threading.Thread(target=self._guarded, name="wan", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._thread.join()
        for side in self._sides.values():
            for descriptor in side:
                os.close(descriptor)
        if self._failure is not None and error is None:
            raise self._failure

    @contextlib.contextmanager
    def inside(self, side: str) -> Iterator[None]:
        """In this thread, and in those that it starts here, sockets belong to this side."""
        before = os.open(SELF, os.O_RDONLY)
        try:
            _call("setns", self._sides[side].namespace, CLONE_NEWNET)
            try:
                yield
            finally:
                _call("setns", before, CLONE_NEWNET)
        finally:
            os.close(before)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """No packet arrives, in either direction."""
        self._cut = True
        try:
            yield
        finally:
            self._cut = False

    def _guarded(self) -> None:
        try:
            self._carry(time.monotonic)
        except BaseException as error:
            self._failure = error

    def _carry(self, clock: Callable[[], float]) -> None:
        """Take packets from one device, and give them to the other when their time has come."""
        parent, child = self._sides["parent"].device, self._sides["child"].device
        other, under_way = {parent: child, child: parent}, list[tuple[float, int, int, bytes]]()
        number = 0
        while not self._over:
            wait = min(0.05, max(0.0, under_way[0][0] - clock())) if under_way else 0.05
            for device in select.select([parent, child], [], [], wait)[0]:
                packet = os.read(device, LONGEST)
                if self._cut:
                    self.swallowed += 1
                elif self._random.random() < self._loss:
                    self.lost += 1
                else:
                    number += 1
                    takes = self._delay + self._random.uniform(-self._jitter, self._jitter)
                    heapq.heappush(under_way, (clock() + takes, number, other[device], packet))
            while under_way and under_way[0][0] <= clock():
                _, _, device, packet = heapq.heappop(under_way)
                if self._cut:
                    self.swallowed += 1
                    continue
                with contextlib.suppress(BlockingIOError):  # the device's queue is full: packets get lost there, too
                    os.write(device, packet)
                self.passed += 1
