"""A study's `report.html`: one page that opens offline, from the document that `tuning.document` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from shoal.observe.drawing import BLUE, GREEN, GREY, INK, RED, label_axes, render, style_axes
from shoal.observe.gantt import gantt
from shoal.observe.page import PAGE
from shoal.run.files import write_atomically
from shoal.run.progress import clock

Document = Mapping[str, Any]
_SOLVED = ("seeds solved", "steps to it, median", "seconds")
_MARKS = {"stopped": ("x", RED), "complete": ("o", GREEN), "paused": ("s", GREY)}


def write_study_report(folder: Path, document: Document) -> Path:
    """Write `report.html` into the study's folder, and return its path."""
    panels = []
    for title, hint, picture in pictures(document):
        wide = " wide" if picture.get_figwidth() > 8 else ""
        svg = render(picture, "svg").decode()
        panels.append(f'<figure class="panel{wide}"><h2>{escape(title)}</h2><p>{escape(hint)}</p>{svg}</figure>')
    state = "" if document["done"] else " The study is not finished."
    head = f"<header><h1>{escape(document['title'])}</h1><p>{escape(document['source'])}.{state}</p></header>"
    parts = [
        head,
        f'<div class="cards">{"".join(_card(*card) for card in cards(document))}</div>',
        *_winner(document),
        f'<div class="grid">{"".join(panels)}</div>',
        *_tables(document),
    ]
    page = PAGE.replace("{{title}}", escape(document["title"])).replace("{{body}}", "\n".join(parts))
    path = folder / "report.html"
    write_atomically(path, page.encode())
    return path


def cards(document: Document) -> list[tuple[str, str, str]]:
    """The figures at the top of the page, each as (name, value, explanation)."""
    best, expected = document["best"], document["expected"]
    made = []
    if best is not None:
        spread = "" if best["spread"] is None else f", sd {best['spread']:.1f} over its seeds"
        made.append(("best score", f"{best['value']:.1f}", f"trial {best['trial']}, {best['phases']} phases{spread}"))
    if document["confirmed"]:
        one = document["confirmed"][0]
        how = f"trial {one['trial']}, {_span(one['ci'])}{len(one['scores'])} fresh seeds" + (
            f", {one['failed']} failed" if one["failed"] else ""
        )
        made.append(("confirmed score", f"{one['mean']:.1f}", how))
    if document.get("baseline") is not None:
        value = "ahead" if document["ahead_of_baseline"] else "not ahead"
        made.append(("beside the default settings", value, document["verdict"]))
    if document["optimism"] is not None:
        found = document["optimism"]
        how = f"{_span(found['ci'])}tuning score minus test score of the search's best trial"
        made.append(("optimism", f"{found['mean']:.1f}", how))
    expectation = "" if expected is None else f"; {expected:.0%} expected if ranks do not persist"
    made.append(("completion rate", f"{document['alpha']:.0%}", f"phases trained, of all{expectation}"))
    to_best = document["to_best_s"]
    how = "" if to_best is None else f"the best score after {clock(to_best)}"
    made.append(("wall time", clock(document["wall_s"]), how))
    made.append(("context switches", str(document["switches"]), "a worker loaded a trial's checkpoint"))
    return made


def pictures(document: Document) -> list[tuple[str, str, Figure]]:
    """(title, hint, figure); those without data are left out."""
    made = []
    if document["gantt"] is not None:
        hint = "one bar per stay of a trial; x: stopped, o: complete, triangle: context switch; "
        hint += "pale: run on a fresh seed (d: default settings)"
        made.append(("Which worker trained which trial", hint, gantt(document["gantt"], {})))
    if any(line["points"] for line in document["scores"]):
        made.append(("Scores over time", "x: stopped, o: complete, square: left paused", scores(document["scores"])))
    if document["scatter"] and document["scatter"][0]["y"]:
        hint = "each trial's newest score; larger dots trained for more phases"
        made.append(("Parameters against score", hint, scatter(document["scatter"])))
    if document["importance"]:
        hint = "share in which trials score well (PED-ANOVA)"
        made.append(("Importance of parameters", hint, importance(document["importance"])))
    if document["confirmed"]:
        made.append(("Confirmed winners", "tuning score against fresh seeds", confirmation(document["confirmed"])))
    return made


def scores(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Reports of every trial over the study's seconds; the mark of the last one shows how the trial ended."""
    picture = Figure(figsize=(9.0, 3.8), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    for line in lines:
        if not line["points"]:
            continue
        at, _, values = zip(*line["points"], strict=True)
        mark, ink = _MARKS.get(line["state"], ("", GREY))
        axes.plot(at, values, color=BLUE, lw=1.1, alpha=0.55, marker=".", ms=3)
        if mark:
            axes.plot(at[-1], values[-1], marker=mark, color=ink, ms=6, mew=1.6, lw=0)
    label_axes(axes, "seconds", "score")
    return picture


def scatter(parts: Sequence[Mapping[str, Any]]) -> Figure:
    """One panel per parameter."""
    columns = min(3, len(parts))
    rows = -(-len(parts) // columns)
    picture = Figure(figsize=(3.1 * columns if columns > 1 else 6.2, 2.9 * rows), layout="constrained")
    grid = picture.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, part in zip(grid, parts, strict=False):
        style_axes(axes)
        x = part["x"] if part["words"] is None else [part["words"].index(word) for word in part["x"]]
        sizes = [14 + 14 * units for units in part["phases"]]
        axes.scatter(x, part["y"], s=sizes, color=BLUE, alpha=0.6, lw=0)
        if part["words"] is not None:
            axes.set_xticks(range(len(part["words"])), part["words"])
            axes.margins(x=0.1)
        elif part["log"]:
            axes.set_xscale("log")
        label_axes(axes, part["name"], "score" if axes in grid[::columns] else "")
    for axes in grid[len(parts) :]:
        axes.set_visible(False)
    return picture


def importance(shares: Mapping[str, float]) -> Figure:
    """One bar per parameter, the most important on top."""
    ordered = sorted(shares.items(), key=lambda pair: pair[1])
    picture = Figure(figsize=(6.2, 0.42 * len(ordered) + 1.1), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    axes.barh([name for name, _ in ordered], [share for _, share in ordered], color=BLUE, height=0.6)
    axes.set_xlim(0, 1)
    label_axes(axes, "share", "")
    return picture


def confirmation(found: Sequence[Mapping[str, Any]]) -> Figure:
    """One row per candidate: scores on fresh seeds, their mean with its interval, and the tuning score."""
    picture = Figure(figsize=(6.2, 0.5 * len(found) + 1.4), layout="constrained")
    axes = picture.subplots()
    style_axes(axes)
    for row, one in enumerate(found):
        first = row == 0
        axes.plot(one["scores"], [row] * len(one["scores"]), "o", color=BLUE, ms=4, alpha=0.4)
        if one["ci"] is not None:
            axes.plot(one["ci"], [row, row], color=BLUE, lw=2.5, solid_capstyle="butt")
        axes.plot(one["mean"], row, "|", color=BLUE, ms=16, mew=2.5, label="fresh seeds" if first else None)
        axes.plot(one["tuning"], row, "D", color=RED, ms=6, label="tuning score" if first else None)
    axes.set_yticks(range(len(found)), [f"trial {one['trial']}" for one in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.margins(x=0.06)
    picture.legend(loc="outside upper right", ncols=2, frameon=False, labelcolor=INK, fontsize=9)
    label_axes(axes, "score", "")
    return picture


def _winner(document: Document) -> list[str]:
    best = document["best"]
    if best is None:
        return []
    settings = ", ".join(f"{name} = {_value(value)}" for name, value in best["settings"].items())
    return [f'<p class="calm">{escape(settings)}<br><code>{escape(best["command"])}</code></p>']


def _tables(document: Document) -> list[str]:
    made = []
    if document["confirmed"]:
        head = [
            "trial",
            "tuning score",
            "fresh seeds: mean",
            "95 % interval",
            "seeds",
            "optimism",
            "its interval",
            *_SOLVED,
        ]
        body = [
            [
                str(one["trial"]) + (" (left out of the race)" if one["left_out"] else ""),
                f"{one['tuning']:.1f}",
                f"{one['mean']:.1f}",
                _span(one["ci"], ""),
                str(len(one["scores"])) + (f" ({one['failed']} failed)" if one["failed"] else ""),
                f"{one['optimism']:.1f}",
                _span(one["optimism_ci"], ""),
                *_solved(one),
            ]
            for one in document["confirmed"]
        ]
        default = document.get("baseline")
        if default is not None:
            mean = "" if default["mean"] is None else f"{default['mean']:.1f}"
            seeds = str(default["seeds"]) + (f" ({default['failed']} failed)" if default["failed"] else "")
            body.append(["default settings", "", mean, _span(default["ci"], ""), seeds, "", "", *_solved(default)])
        made.append(_table("Confirmed on fresh seeds", head, body))
    names = list(document["space"])
    body = []
    for trial in document["trials"]:
        score = trial["why"] if trial["value"] is None else f"{trial['value']:.1f}"
        spread = "" if trial["spread"] is None else f"{trial['spread']:.1f}"
        copied = ", ".join(f"trial {source} after phase {unit}" for unit, source in trial["copies"])
        values = [_value(trial["settings"][name]) for name in names]
        body.append([str(trial["trial"]), trial["state"], str(trial["phases"]), score, spread, *values, copied])
    head = ["trial", "state", "phases", "score", "sd", *names, "copied"]
    if not any(row[-1] for row in body):
        head, body = head[:-1], [row[:-1] for row in body]
    made.append(_table("Trials", head, body))
    about = [[name, text] for name, text in document["space"].items()]
    about += [[name, str(value)] for name, value in document["settings"].items()]
    made.append(_table("Search space and settings", ["name", "values"], about))
    return made


def _solved(one: Mapping[str, Any]) -> list[str]:
    """Entries of a row for `_SOLVED`."""
    steps, seconds = one.get("steps"), one.get("seconds")
    numbers = ["" if steps is None else f"{steps:,.0f}", "" if seconds is None else f"{seconds:.1f}"]
    return [str(one.get("solved") or 0), *numbers]


def _card(what: str, value: str, how: str) -> str:
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="value">{escape(value)}</div>'
        f'<div class="how">{escape(how)}</div></div>'
    )


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<td><b>{escape(word)}</b></td>" for word in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in rows)
    return f"<details open><summary>{escape(title)}</summary><table><tr>{top}</tr>{body}</table></details>"


def _span(ends: Sequence[float] | None, after: str = ", ") -> str:
    return "" if ends is None else f"[{ends[0]:.1f}, {ends[1]:.1f}]{after}"


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
