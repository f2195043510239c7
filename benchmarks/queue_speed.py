"""The Stream port between two processes, for `run.py`: one JSON object.

gb_per_s     1 MB slots, filled by one process and copied out by the other
small_us     slots of 64 numbers one after another, microseconds each
round_us     a small slot there and another back, microseconds for half of the way
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from shoal.core.program import Context, Ports, Program, Report, RoleSpec, Steps, StreamSpec
from shoal.core.record import Field, Record
from shoal.runtimes.processes import Processes, ProcessesConfig

WARM = 50  # slots before the clock starts


class Role:
    def __init__(self, count: int, ports: Ports, context: Context) -> None:
        self.count, self.ports = count, ports

    def snapshots(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        return None


class Producer(Role):
    """Fills slots as an actor does: by copying into them."""

    def run(self) -> Steps:
        there, back = self.ports["there"], self.ports.get("back")
        data: dict[str, np.ndarray] = {}
        while True:
            slot = yield from there.claim(0)
            data = data or {name: np.ones_like(array) for name, array in slot.items()}
            for name, array in data.items():
                slot[name][...] = array
            there.push(0)
            if back is not None:
                yield from back.take(0)
                back.release(0)


class Consumer(Role):
    """Copies slots out, and answers each if there is a stream back."""

    def run(self) -> Steps:
        there, back = self.ports["there"], self.ports.get("back")
        out: dict[str, np.ndarray] = {}
        for number in range(self.count + WARM):
            if number == WARM:
                began = time.perf_counter()
            slot = yield from there.take(0)
            out = out or {name: np.empty_like(array) for name, array in slot.items()}
            for name, array in out.items():
                array[...] = slot[name]
            there.release(0)
            if back is not None:
                yield from back.claim(0)
                back.push(0)
        took = time.perf_counter() - began
        yield Report(version=0, env_steps=0, began_at=0.0, ended_at=took, episodes=(), metrics={}, state=None)


def seconds(numbers: int, count: int, answered: bool = False, copied: bool = False, runtime: Any = None) -> float:
    """Seconds that `count` slots of `numbers` float32 take, between processes unless another runtime is given."""
    record = Record((Field("x", (numbers,), "float32"),))
    # A stream whose producer may end is taken by copy under a lock, as those are that learners share.
    there = StreamSpec(producers=("producer",), consumer="consumer", depth=4, record=record, ends=copied)
    back = StreamSpec(producers=("consumer",), consumer="producer", depth=4, record=record)
    program = Program(
        roles=(
            RoleSpec(name="consumer", build=partial(Consumer, count), main=True),
            RoleSpec(name="producer", build=partial(Producer, count)),
        ),
        ports={"there": there, "back": back} if answered else {"there": there},
    )
    session = (runtime or Processes(ProcessesConfig())).start(program, lambda: False)
    try:
        report = next(event for event in session if isinstance(event, Report))
        return report.ended_at
    finally:
        session.close()


def main(quick: bool, runtime: Any = None) -> dict[str, Any]:
    big, small, count = 1 << 18, 64, 400 if quick else 4000
    found: dict[str, Any] = {}
    for case, copied in (("in place", False), ("copied under a lock", True)):
        found[case] = {
            "gb_per_s": count * big * 4 / seconds(big, count, copied=copied, runtime=runtime) / 1e9,
            "small_us": 1e6 * seconds(small, 10 * count, copied=copied, runtime=runtime) / (10 * count),
            "round_us": 1e6 * seconds(small, count, answered=True, copied=copied, runtime=runtime) / count / 2,
        }
    return found


if __name__ == "__main__":
    print(json.dumps(main("--quick" in sys.argv)))
