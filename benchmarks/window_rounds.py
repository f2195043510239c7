"""How often learners read the same window, for `run.py`: rounds through the port itself. Prints one JSON object.

In each round every actor pushes, then every learner reads one window: any of them, or any of its own range.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from shoal.core.program import StreamSpec
from shoal.core.record import Field, Record
from shoal.runtimes.memory import Place, Silent, plain_ports, private_arena
from shoal.topologies.actor_learner import assigned


def collision_rate(actors: int, learners: int, selection: str, rounds: int) -> float:
    producers, consumers = ([f"{kind}-{i}" for i in range(n)] for kind, n in (("actor", actors), ("learner", learners)))
    record = Record((Field("x", (4,), "float32"),))
    spec = StreamSpec(
        producers=tuple(producers),
        consumer=consumers[0],
        others=tuple(consumers[1:]),
        depth=2,
        record=record,
        order="window",
    )
    bells = dict.fromkeys([*producers, *consumers], Silent())
    stream = plain_ports({"s": spec}, private_arena({"s": spec}), Place(None, bells))["s"]
    ends, ranges, rng = (
        [stream.end_of(i) for i in range(learners)],
        assigned(actors, learners, spread=False),
        np.random.default_rng(0),
    )
    for _ in range(rounds):
        for lane in range(actors):
            stream.claim(lane).attempt()
            stream.push(lane)
        for end, own in zip(ends, ranges, strict=True):
            lane = int(rng.choice(own if selection == "assigned" else actors))
            end.take(lane).attempt()
            end.release(lane)
    reads, collisions = stream.collisions().sum(axis=0)
    return float(collisions / reads)


if __name__ == "__main__":
    rounds = 500 if "--quick" in sys.argv else 5000
    found = {
        f"{learners} {selection}": collision_rate(8, learners, selection, rounds)
        for learners in (2, 4, 8)
        for selection in ("assigned", "random")
    }
    print(json.dumps(found))
