"""Comparison of our numbers with published ones: tables, figures and one self-contained page.

A results document is plain data: `title`, `source`, `size`, `tables` and `goals` as in the experiment's spec, `rows`
(`keys`, and `values`: a list of one value per seed, or `{mean, ci}`), `figures` (see `comparison_figures`), `reference`
({row: {column: value}}), `notes` and `deviations` (lines). Nothing here trains: a saved document can be drawn again.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.observe.comparison_figures import Reference, dots, draw
from shoal.observe.drawing import render
from shoal.observe.page import PAGE
from shoal.run.files import pretty, write_atomically
from shoal.run.progress import clock
from shoal.studies.statistics import interval

ALIKE = 0.05  # a difference up to this share of the published number counts as none

Document = Mapping[str, Any]


class Cell(NamedTuple):
    """One of our values beside the published one."""

    row: str
    column: str  # the displayed title
    ours: str
    published: str  # empty if there is none
    verdict: str  # better, worse, alike; empty if it cannot be judged


class Goal(NamedTuple):
    what: str
    limit: str
    ours: float | None
    met: bool | None  # None at the quick size, which cannot be expected to meet it


def cells(document: Document, table: Mapping[str, Any]) -> list[list[Cell]]:
    """A table's lines, one cell for each column."""
    lines = []
    for row in _rows(document, table.get("where", {}), table["key"]):
        name = str(row["keys"][table["key"]])
        reference = document["reference"].get(name, {})
        lines.append([_cell(name, table, column, row["values"], reference) for column in table["columns"]])
    return lines


def goals(document: Document) -> list[Goal]:
    """Each goal, judged by the median over the seeds."""
    found = []
    for goal in document.get("goals", ()):
        rows = [row for row in document["rows"] if _fits(row["keys"], goal["row"])]
        values = rows[0]["values"].get(goal["column"]) if rows else None
        low, high = goal.get("at_least"), goal.get("at_most")
        if rows and not isinstance(values, Mapping):
            # A seed that never reached its goal has no value: it counts as worse than any other.
            missing = max(0, len(rows[0]["values"].get("solved", ())) - len(values or ()))
            values = [*(values or ()), *[-math.inf if low is not None else math.inf] * missing]
        ours = float(values["mean"] if isinstance(values, Mapping) else np.median(values)) if values else None
        limit = f"at least {_number(low)}" if low is not None else f"at most {_number(high)}"
        met: bool | None = None
        if ours is not None and document["size"] == "full":
            met = ours >= low if low is not None else ours <= high
        found.append(Goal(goal["what"], limit, ours, met))
    return found


def differences(document: Document) -> list[str]:
    """Differences between our and the published numbers: one line per table, then one for each value that is worse."""
    if document["size"] != "full":
        return []
    lines = []
    for table in document["tables"]:
        judged = [cell for line in cells(document, table) for cell in line if cell.verdict]
        if not judged:
            continue
        counts = {word: sum(cell.verdict == word for cell in judged) for word in ("better", "alike", "worse")}
        lines.append(f"{table['title']}: {', '.join(f'{n} {word}' for word, n in counts.items() if n)}")
        worse = [cell for cell in judged if cell.verdict == "worse"]
        lines += [f"worse: {c.row}, {c.column}: {c.ours}, published {c.published}" for c in worse]
    return lines


def markdown(document: Document) -> str:
    """Everything but the figures as Markdown, for a terminal or a repository."""
    parts = [f"# {document['title']}", "", f"{document['source']}", "", *_how(document), ""]
    for table in document["tables"]:
        lines = cells(document, table)
        if lines:
            parts += [f"## {table['title']}", "", *_grid(table, lines), ""]
    reached = goals(document)
    if reached:
        head = [["goal", "limit", "ours (median)", "met"]]
        body = [[g.what, g.limit, _number(g.ours), _word(g.met)] for g in reached]
        parts += ["## Goals", "", *_aligned_lines(head + body), ""]
    for title, lines_ in (("Where they differ", differences(document)), ("Why", document["deviations"])):
        if lines_:
            parts += [f"## {title}", "", *(f"- {line}" for line in lines_), ""]
    if document["notes"]:
        parts += ["## Notes", "", *(f"- {line}" for line in document["notes"]), ""]
    return "\n".join(parts)


def write_comparison(folder: Path, document: Document) -> Path:
    """Write `results.json`, `table.md`, a PNG for each figure and `report.html` to `folder`. Returns the path of the last."""
    write_atomically(folder / "results.json", pretty(dict(document)))
    write_atomically(folder / "table.md", markdown(document).encode())
    pictures = []
    for figure in document["figures"]:
        pictures.append((figure["name"], figure["title"], figure["hint"], draw(figure, document["reference"])))
    pictures += _dot_pictures(document)
    panels = []
    for name, title, hint, picture in pictures:
        write_atomically(folder / f"{name}.png", render(picture, "png"))
        wide = " wide" if picture.get_figwidth() > 8 else ""
        svg = render(picture, "svg").decode()
        panels.append(f'<figure class="panel{wide}"><h2>{escape(title)}</h2><p>{escape(hint)}</p>{svg}</figure>')
    panels += [_clip(clip) for clip in document.get("clips", ())]
    body = "\n".join(
        [_header(document), *_html_tables(document), f'<div class="grid">{"".join(panels)}</div>', *_lists(document)]
    )
    page = PAGE.replace("{{title}}", escape(document["title"])).replace("{{body}}", body)
    write_atomically(folder / "report.html", page.encode())
    return folder / "report.html"


def _clip(clip: Mapping[str, str]) -> str:
    """An mp4, embedded in the page."""
    data = base64.b64encode(Path(clip["file"]).read_bytes()).decode()
    return (
        f'<figure class="panel"><h2>{escape(clip["title"])}</h2><p>{escape(clip["hint"])}</p>'
        f'<video controls loop muted playsinline autoplay src="data:video/mp4;base64,{data}"></video></figure>'
    )


def _cell(
    name: str, table: Mapping[str, Any], column: str, values: Mapping[str, Any], reference: Mapping[str, Any]
) -> Cell:
    ours, published = values.get(column), reference.get(column)
    title, shown = table["columns"][column], "" if published is None else _number(published)
    if not ours:
        return Cell(name, title, "-", shown, "")
    judged = column in table.get("judged", table["columns"])
    if isinstance(ours, Mapping):  # a ratio of rows: one number with its interval
        ends = tuple(ours["ci"]) if ours["ci"] else None
        return Cell(
            name, title, *_compared([ours["mean"]], ends, published, shown, judged, column in table.get("higher", ()))
        )
    if isinstance(ours[0], str):
        return Cell(name, title, *_words(ours, published))
    lost = sum(not math.isfinite(value) for value in ours)
    if lost:
        return Cell(name, title, f"{lost} of {len(ours)} not finite", shown, "")
    return Cell(
        name, title, *_compared(ours, interval(ours), published, shown, judged, column in table.get("higher", ()))
    )


def _compared(
    ours: Sequence[float], ends: tuple[float, float] | None, published: Any, shown: str, judged: bool, higher: bool
) -> tuple[str, str, str]:
    """(ours with its interval, the published, the verdict)."""
    text = _number(float(np.mean(ours))) + (
        f" [{_number(ends[0])}, {_number(ends[1])}]" if ends and ends[0] < ends[1] else ""
    )
    return text, shown, _verdict(ours, ends, published, higher) if judged and published is not None else ""


def _words(ours: Sequence[str], published: str | None) -> tuple[str, str, str]:
    """Every seed's yes or no beside the published word; for other words, such as hashes, the first seed's."""
    if published is None and ours[0] not in ("yes", "no"):
        return ours[0], "", ""
    text = ours[0] if len(set(ours)) == 1 else f"{ours.count('yes')} of {len(ours)}"
    if published is None:
        return text, "", ""
    return text, published, "alike" if text == published else "better" if text == "yes" else "worse"


def _verdict(ours: Sequence[float], ends: tuple[float, float] | None, published: float, higher: bool) -> str:
    mean = float(np.mean(ours))
    if abs(mean - published) <= ALIKE * abs(published) or (ends is not None and ends[0] <= published <= ends[1]):
        return "alike"
    return "better" if (mean > published) == higher else "worse"


def _rows(document: Document, where: Mapping[str, Any], key: str) -> list[Any]:
    return [row for row in document["rows"] if key in row["keys"] and _fits(row["keys"], where)]


def _fits(keys: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    return all(keys.get(name) == value for name, value in where.items())


def _how(document: Document) -> list[str]:
    machine = document["machine"]
    seeds = f"{document['seeds']} {'seed' if document['seeds'] == 1 else 'seeds'} each"
    interval_ = "; ours: mean over the seeds, in brackets its 95 % bootstrap interval" if document["seeds"] > 1 else ""
    size = f"Size {document['size']}, " if document["size"] else ""
    took = "in parts" if document["took_s"] is None else clock(document["took_s"])
    lines = [f"{size}{seeds}{interval_}. {machine['cores']} cores ({machine['cpu']}), {took}."]
    if document["size"] == "quick":
        lines.append(
            "Quick: shows that everything runs; trained too briefly to compare its numbers with the published ones."
        )
    return lines


def _grid(table: Mapping[str, Any], lines: Sequence[Sequence[Cell]]) -> list[str]:
    """A table with a column for ours, and one for the published values if there are any."""
    has_published = [any(line[i].published for line in lines) for i in range(len(lines[0]))]
    head = [table["key"]]
    for cell, both in zip(lines[0], has_published, strict=True):
        head += [cell.column, "published"] if both else [cell.column]
    body = []
    for line in lines:
        words = [line[0].row]
        for cell, both in zip(line, has_published, strict=True):
            words += [cell.ours, cell.published or "-"] if both else [cell.ours]
        body.append(words)
    return _aligned_lines([head, *body])


def _aligned_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    written = ["| " + " | ".join(word.ljust(w) for word, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return [written[0], "| " + " | ".join("-" * max(3, w) for w in widths) + " |", *written[1:]]


def _dot_pictures(document: Document) -> list[tuple[str, str, str, Any]]:
    made = []
    for at, table in enumerate(document["tables"]):
        rows = _rows(document, table.get("where", {}), table["key"])
        for column in table.get("dots", ()) if rows else ():
            reference: Reference = document["reference"]
            entries = []
            for row in rows:
                name = str(row["keys"][table["key"]])
                published = reference.get(name, {}).get(column)
                values = [max(value, 1e-12) for value in row["values"][column]]
                entries.append((name, values, None if published in (None, "") else float(published)))
            title = f"{table['columns'][column]}"
            made.append((f"dots-{at}-{column}", title, table["title"], dots("", entries, title)))
    return made


def _header(document: Document) -> str:
    how = " ".join(_how(document))
    return f"<header><h1>{escape(document['title'])}</h1><p>{escape(document['source'])}<br>{escape(how)}</p></header>"


def _html_tables(document: Document) -> list[str]:
    made = []
    for table in document["tables"]:
        lines = cells(document, table)
        if lines:
            made.append(_html_table(table["title"], [_split(text) for text in _grid(table, lines)]))
    reached = goals(document)
    if reached:
        body = [[g.what, g.limit, _number(g.ours), _word(g.met)] for g in reached]
        made.append(_html_table("Goals", [["goal", "limit", "ours (median)", "met"], [], *body]))
    return made


def _split(line: str) -> list[str]:
    return [word.strip() for word in line.strip("| ").split(" | ")]


def _html_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<td><b>{escape(word)}</b></td>" for word in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in rows[2:])
    return f"<details open><summary>{escape(title)}</summary><table><tr>{head}</tr>{body}</table></details><br>"


def _lists(document: Document) -> list[str]:
    entries = (
        ("Where they differ", differences(document)),
        ("Why", document["deviations"]),
        ("Notes", document["notes"]),
    )
    return [
        f"<details open><summary>{title}</summary><ul>{''.join(f'<li>{_inline(line)}</li>' for line in lines)}</ul></details>"
        for title, lines in entries
        if lines
    ]


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _word(met: bool | None) -> str:
    return "not judged" if met is None else "yes" if met else "no"


def _number(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
