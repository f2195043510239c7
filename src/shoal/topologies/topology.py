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

    def __init__(self, config: Any) -> None: ...

    def program(self, parts: Parts) -> Program: ...
