"""What a topology is."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.core.program import Program
from shoal.roles.parts import Parts


class Topology(Protocol):
    """Turns parts into a program."""

    config: Any
    Config: type[Any]
    about: str
    apart: bool  # learners may not hold the weights that acted, so `act` sends log-probabilities with each step
    many_learners: bool  # `--learners` may be more than one

    def __init__(self, config: Any) -> None: ...

    def program(self, parts: Parts) -> Program: ...
