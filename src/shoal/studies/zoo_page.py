"""The zoo's page: measured rows are kept in `experiments/zoo/ours.json`, and the table of `docs/zoo.md` is made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.errors import BadInput
from shoal.run.files import write_atomically
from shoal.studies.reproduce import read_reference

SOON = 300.0  # seconds
BEGIN, END = "<!-- table: shoal reproduce zoo writes it -->", "<!-- end of the table -->"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's row."""

    env: str
    algo: str
    score: float  # interquartile mean over the seeds
    ci: tuple[float, float] | None  # of the score, 95 %
    steps: float
    seconds: float
    seeds: int
    episodes: int
    date: str
    machine: str
    budget: int | None = None  # steps that were asked for; None: as many as by default
    cut_after: float | None = None  # minutes after which at least one run was ended
    settings: str = ""  # digest of the settings; empty where it was not recorded
    earlier: bool = False  # measured by other settings than those at the last publication
    load: float | None = None  # the machine's, over the last minute of the median run; None where it was not recorded


def publish(root: Path, measured: Measured, agents: Mapping[str, Sequence[str]], today: Mapping[str, str]) -> None:
    """Replace this agent's row, and make the table again.

    Rows of other agents stay as they are, with a mark where their settings are not `today`'s.
    """
    rows = {**read_rows(root / "ours.json"), f"{measured.env} {measured.algo}": measured}
    others = {name: row.settings != today.get(name, row.settings) for name, row in rows.items() if row is not measured}
    rows |= {name: msgspec.structs.replace(rows[name], earlier=earlier) for name, earlier in others.items()}
    kept = {f"{env} {algo}": rows[f"{env} {algo}"] for env, algo in _listed(agents) if f"{env} {algo}" in rows}
    write_atomically(root / "ours.json", msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
    page = root.parent.parent / "docs" / "zoo.md"
    write_atomically(page, with_table(page, table(kept, read_reference(root / "reference.csv"), agents)).encode())


def read_rows(path: Path) -> dict[str, Measured]:
    """{"ENV ALGO": row}; empty if nothing was measured yet."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Measured])
    except msgspec.MsgspecError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error}") from None


def with_table(page: Path, lines: Sequence[str]) -> str:
    """The page's text with this table between its two marks."""
    text = page.read_text() if page.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadInput(f"{str(page)!r} has no place for the table: a line {BEGIN!r} and a line {END!r}")
    return "\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"])


def table(
    rows: Mapping[str, Measured], reference: Mapping[str, Mapping[str, Any]], agents: Mapping[str, Sequence[str]]
) -> list[str]:
    """A line for each listed agent; those that were not measured yet have the published score alone."""
    head = ["environment", "algorithm", "ours", "RL Zoo", "reached", "within 300 s"]
    head += ["steps", "RL Zoo's", "seconds", "load", "measured"]
    lines = [head, ["---"] * len(head)]
    best: dict[str, bool] = {}
    for env, algo in _listed(agents):
        theirs, row = reference.get(f"{env} {algo}", {}), rows.get(f"{env} {algo}")
        published = theirs.get("score")
        score, steps = _number(published), _count(theirs.get("steps"))
        if row is None:
            lines.append([env, algo, "", score, "", "", "", steps, "", "", ""])
        else:
            ends = "" if row.ci is None else f" [{_number(row.ci[0])}, {_number(row.ci[1])}]"
            how = f"{row.date}, {row.seeds} seeds x {row.episodes} episodes, {row.machine}"
            how += ", settings not recorded" if not row.settings else ", with earlier settings" if row.earlier else ""
            asked = "" if row.budget is None else f" (`--steps {row.budget}`)"
            asked += "" if row.cut_after is None else f" (ended after {row.cut_after:g} min)"
            ours = [f"{_number(row.score)}{ends}", score, reached(row, published), in_time(row, published)]
            ours += [_count(row.steps) + asked, steps]
            lines.append([env, algo, *ours, f"{row.seconds:,.0f}", "" if row.load is None else f"{row.load:.1f}", how])
        if published is not None:
            best[env] = best.get(env, False) or (row is not None and reached(row, published) == "yes")
    count = f"{sum(best.values())} of {len(best)} environments with a published score"
    soon = {row.env for name, row in rows.items() if in_time(row, reference.get(name, {}).get("score")) == "yes"}
    summary = f"Measured: {len(rows)} of {sum(map(len, agents.values()))} agents. RL Zoo's score is reached on {count},"
    summary += f" and within 300 s on {len(soon)}."
    return [summary, "", *(f"| {' | '.join(line)} |" for line in lines)]


def reached(row: Measured, published: float | None) -> str:
    """yes: at least the published score. within: below it, and the interval contains it. Empty if none is published."""
    if published is None:
        return ""
    if row.score >= published:
        return "yes"
    return "within" if row.ci is not None and row.ci[1] >= published else "no"


def in_time(row: Measured, published: float | None) -> str:
    """yes: the median run that reached the published score took at most `SOON` seconds. Empty if none is published."""
    if published is None:
        return ""
    return "yes" if reached(row, published) == "yes" and row.seconds <= SOON else "no"


def _listed(agents: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(env, algo) for env, algos in agents.items() for algo in algos]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
