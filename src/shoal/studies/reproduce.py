"""Published experiments: their folders, their specs, and the numbers to compare with.

An experiment is a folder in `experiments/` of a source checkout: spec.toml, reference.csv, README.md with the deviations.
"""

from __future__ import annotations

import csv
import re
import tomllib
from pathlib import Path
from typing import Any

from shoal.core.errors import BadInput

SPEC_ENTRIES = {"title", "source", "runner", "all", "full", "quick", "tables", "goals"}


def experiments_folder() -> Path:
    """`experiments/` of the source checkout that this code runs from, or of the one around the working folder."""
    here = Path(__file__).resolve().parents[3]
    for place in (here, Path.cwd(), *Path.cwd().parents):
        if any((place / "experiments").glob("*/spec.toml")):
            return place / "experiments"
    raise BadInput(f"no experiments/ above {str(Path.cwd())!r}: shoal reproduce needs a source checkout of Shoal")


def names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/spec.toml"))


def read_spec(folder: Path) -> dict[str, Any]:
    """A spec.toml. Raises `BadInput` if a required entry is missing or an entry is unknown."""
    path = folder / "spec.toml"
    try:
        spec = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"cannot read {str(path)!r}: {error}") from None
    missing = [entry for entry in ("title", "source", "runner", "full", "quick", "tables") if entry not in spec]
    strange = sorted(set(spec) - SPEC_ENTRIES)
    if missing or strange:
        what = f"lacks {missing[0]!r}" if missing else f"has an unknown entry {strange[0]!r}"
        raise BadInput(f"{str(path)!r} {what}")
    return spec


def read_reference(path: Path) -> dict[str, dict[str, Any]]:
    """{row: {column: number or word}}; empty fields are left out."""
    try:
        lines = list(csv.DictReader(path.read_text().splitlines()))
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from None
    return {
        line.pop("row"): {column: _value(text) for column, text in line.items() if text not in (None, "")}
        for line in lines
    }


def read_deviations(path: Path) -> list[str]:
    """The points under `## Deviations` of an experiment's README."""
    try:
        text = path.read_text()
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from None
    section = text.partition("## Deviations\n")[2].partition("\n## ")[0]
    return [" ".join(point.split()) for point in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
