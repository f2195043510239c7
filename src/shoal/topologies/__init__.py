"""Topologies: the roles of a program and the ports that join them. Wiring only.

May import: roles and below. A topology turns a `Blueprint` into a `Program`; it knows no runtime. To add one: its file, one line in
`TOPOLOGIES`, its row in the test matrix. Looking for the loops? `roles`. For implementations of ports? `runtimes`.
"""

from __future__ import annotations

from shoal.topologies.actor_learner import ActorLearnerTopology
from shoal.topologies.dyna import DynaTopology
from shoal.topologies.ga3c import Ga3cTopology
from shoal.topologies.seed import SeedTopology
from shoal.topologies.sequential import SequentialTopology
from shoal.topologies.shared_params import SharedParamsTopology
from shoal.topologies.sync import SyncTopology
from shoal.topologies.topology import Topology

TOPOLOGIES: dict[str, type[Topology]] = {
    "actor_learner": ActorLearnerTopology,
    "dyna": DynaTopology,
    "ga3c": Ga3cTopology,
    "seed": SeedTopology,
    "sequential": SequentialTopology,
    "shared_params": SharedParamsTopology,
    "sync": SyncTopology,
}
