"""Settings as text, for `--help` and the listing commands."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any

from shoal.core.config import field_help


def describe(config: Any, prefix: str) -> str:
    """Each field: its flag, its default, and its docstring."""
    helps, lines = field_help(config), []
    for field in dataclasses.fields(config):
        default = field.default
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        head = f"  --{prefix}{field.name.replace('_', '-')}" + ("" if default is None else f" ({shown})")
        body = textwrap.wrap(helps.get(field.name, ""), 90, initial_indent=" " * 6, subsequent_indent=" " * 6)
        lines += [head, *body]
    return "\n".join(lines) + "\n" if lines else "  nothing to set\n"


def show(registry: Mapping[str, Any], prefix: str) -> str:
    """Every entry of a registry, with its one-line description and its settings."""
    return "\n".join(f"{name}: {entry.about}\n{describe(entry.Config, prefix)}" for name, entry in registry.items())
