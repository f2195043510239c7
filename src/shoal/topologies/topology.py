"""The protocol of topologies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from shoal.core.blueprint import Blueprint
from shoal.core.program import Program

AS_TUNED: Mapping[str, Any] = MappingProxyType({})  # no settings of its own


class Topology(Protocol):
    """Turns a blueprint into a program."""

    config: Any
    Config: type[Any]
    about: str
    many_learners: bool  # `--learners` may be more than one
    each_learns: bool  # every actor is a worker, which learns by itself from its own unrolls
    acting: int  # number of actors that step real environments; 0 is all of them
    if_parallel: tuple[str, ...]  # own settings that are on by default if roles run at the same time
    usual: Mapping[str, Any]  # settings of an algorithm whose defaults here differ from the tuned ones

    def one_optimiser(self, blueprint: Blueprint) -> bool:
        """Whether there is one set of the optimiser's moments, which reports carry; otherwise each worker has its own."""

    @property
    def apart(self) -> bool:
        """Whether learners may lack the weights that acted, so that `act` sends log-probabilities with each step."""

    @property
    def mixed(self) -> bool:
        """Whether batches hold unrolls of any actors, so that a column does not stay with one environment."""

    def __init__(self, config: Any) -> None: ...

    def unrolls(self, actors: int, learners: int) -> int:
        """The number of unrolls in one learner's batch. Raises `BadInput` if these actors and learners cannot make one."""

    def program(self, blueprint: Blueprint) -> Program: ...
