"""Entry point of a guarded process: `python -m shoal.runtimes.guarded_worker REQUESTS MESSAGES CLOCK NICE GENTLY`.

Started only by `guarded`, never by hand.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import signal
import sys
import threading
import time
import traceback

import cloudpickle

from shoal.process.device import collect_rarely, settle_process
from shoal.process.lifetime import killed_with_parent
from shoal.runtimes.guarded import BUG, CLOCK, END, HEADER, OUTSIDE, PART, READY, Answer, frame

GENTLE = 10  # niceness while loading beside more urgent work; 0 is normal, 19 the lowest priority


def main(requests: int, messages: int, clock: int, nice: int, gently: int) -> None:
    """Answer requests until the parent closes the pipe or ends; report an exception before exiting."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it
    collect_rarely()
    killed_with_parent()  # even if an environment hangs and holds Python's lock; if the parent died earlier, the reader notices
    os.nice(nice)
    for fd in (requests, messages, clock):
        os.set_inheritable(fd, False)  # processes that an environment starts do not get these
    shared = CLOCK.views(mmap.mmap(clock, CLOCK.nbytes))
    since, which = shared["since"], shared["which"]
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, inbox), daemon=True).start()

    def mark(inside: int) -> None:
        which[...] = inside
        since[...] = 0.0 if inside == OUTSIDE else time.monotonic()

    try:
        recipe = inbox.get()
        if gently:
            loading = threading.Thread(target=_load_gently, args=(recipe,))
            loading.start()
            loading.join()
        settle_process()
        answer: Answer = cloudpickle.loads(recipe)
        _say(messages, frame(READY))
        while True:
            for message in answer(inbox.get(), mark):
                _say(messages, frame(PART, message))
                if not inbox.empty():  # a newer request: abandon this one
                    break
            _say(messages, frame(END))
    except Exception:
        _say(messages, frame(BUG, traceback.format_exc().strip().encode()))
        os._exit(1)


def _load_gently(recipe: bytes) -> None:
    """Do the recipe's imports in a thread of low priority, while other processes use the cores.

    A process that lowers its priority cannot raise it again, but on Linux a thread has its own priority: this thread ends
    and its imports stay. A failure shows when the recipe is loaded again.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GENTLE)
    with contextlib.suppress(Exception):
        cloudpickle.loads(recipe)


def _read(requests: int, inbox: queue.SimpleQueue[bytes]) -> None:
    """Put the parent's frames into the inbox. End of file means that the parent has ended or is done with this process."""
    with open(requests, "rb", closefd=False) as source:
        while header := source.read(HEADER.size):
            inbox.put(source.read(HEADER.unpack(header)[1]))
    os._exit(1)


def _say(messages: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(messages, view) :]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
