"""A law's C header, compiled by gcc and asked."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from shoal.optimize import Problem
from shoal.optimize.axes import Choice, Whole

C_MAIN = """
#include <stdio.h>
#include "LAW"
int main(void) {
    double ROW;
    while (scanf("SCAN", TAKE) == COUNT) {
        NAME_knobs k = NAME_law(ROW);
        printf("PRINT\\n", GIVE);
    }
    return 0;
}
"""


def ask(header: Path, problem: Problem, rows: list[tuple[float, ...]]) -> list[list[str]]:
    """The knobs of each row of conditions, as words, by a program that gcc made of the header."""
    names = [axis.name for axis in problem.conditions]
    words = {
        "LAW": header.name,
        "NAME": problem.name,
        "ROW": ", ".join(names),
        "SCAN": "%lf" * len(names),
        "TAKE": ", ".join(f"&{name}" for name in names),
        "COUNT": str(len(names)),
        "PRINT": "\\t".join(_format(axis) for axis in problem.knobs),
        "GIVE": ", ".join(f"k.{axis.name}" for axis in problem.knobs),
    }
    text = re.sub(r"\b(LAW|ROW|SCAN|TAKE|COUNT|PRINT|GIVE)\b|NAME", lambda found: words[found[0]], C_MAIN)
    (header.parent / "main.c").write_text(text)
    strict = ["gcc", "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "main.c", "-o", "ask", "-lm"]
    done = subprocess.run(strict, cwd=header.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    asked = "\n".join(" ".join(map(repr, row)) for row in rows)
    done = subprocess.run(["./ask"], cwd=header.parent, input=asked, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def _format(axis: Any) -> str:
    if isinstance(axis, Whole):
        return "%ld"
    return "%s" if isinstance(axis, Choice) and isinstance(axis.among[0], str) else "%.17g"
