"""What a topology is."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from shoal.core.blueprint import Blueprint
from shoal.core.program import Program


class Topology(Protocol):
    """Turns a blueprint into a program."""

    config: Any
    Config: type[Any]
    about: str
    many_learners: bool  # `--learners` may be more than one

    @property
    def apart(self) -> bool:
        """Learners may not hold the weights that acted, so `act` sends log-probabilities with each step."""

    @property
    def mixed(self) -> bool:
        """Batches hold unrolls of any actors, so that a column does not stay with one environment."""

    def __init__(self, config: Any) -> None: ...

    def program(self, blueprint: Blueprint) -> Program: ...


@runtime_checkable
class OwnBatches(Protocol):
    """A topology whose learners take other batches than one unroll of each actor."""

    def unrolls(self, actors: int, learners: int) -> int:
        """Of how many unrolls one learner's batch consists. `BadInput` where it cannot be had."""


def unrolls_of(topology: Topology, actors: int, learners: int) -> int:
    """That one learner takes for an update."""
    return topology.unrolls(actors, learners) if isinstance(topology, OwnBatches) else actors
