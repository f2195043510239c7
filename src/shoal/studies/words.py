"""Settings as words of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.experiment import nest

NONE = "-"  # no value: the default


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings as `shoal train` takes them on its command line: `--algo=ppo --algo.clip=0.3`."""
    flat = flattened({name: value for name, value in settings.items() if value is not None})
    return [f"--{name.replace('_', '-')}={word(value)}" for name, value in flat.items() if value is not None]


def flattened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names of their flags: `algo={"name": "a2c", "unroll": 8}` becomes `algo` and `algo.unroll`."""
    flat: dict[str, Any] = {}
    for name, value in nest(settings).items():
        table = value if isinstance(value, Mapping) else {"": value}
        flat |= {name if field in ("", "name") else f"{name}.{field}": entry for field, entry in table.items()}
    return flat


def word(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(word, value)) if isinstance(value, list | tuple) else str(value)
