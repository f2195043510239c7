"""The report of a run: one HTML file without outside resources, which opens offline."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from shoal.observe import plots
from shoal.observe.children_plot import children
from shoal.observe.drawing import render
from shoal.observe.page import PAGE
from shoal.run.files import write_atomically
from shoal.run.folder import RunFolder, read_json, ways
from shoal.run.progress import clock
from shoal.run.sinks import flattened, read_metrics
from shoal.run.timeline import Rows, is_number, series, timeline

_CLIP_MAX = 12 * 2**20  # bytes: a larger video.mp4 is embedded only if it is passed in


class Seen(NamedTuple):
    """The data behind the figures."""

    rows: Rows
    evaluation: Mapping[str, Any]  # by way: greedy, sampled
    target: float | None
    lags: Mapping[int, int]  # {lag: rows learnt from}; {} if that was not counted


# Title, one line on how to read it, and its figure.
SECTIONS: tuple[tuple[str, str, Callable[[Seen], Figure | None]], ...] = (
    (
        "Learning curve",
        "Return of training episodes against environment steps.",
        lambda seen: plots.learning_curve(seen.rows, "steps", seen.target),
    ),
    (
        "Learning curve in time",
        "The same against seconds since the first record.",
        lambda seen: plots.learning_curve(seen.rows, "seconds", seen.target),
    ),
    (
        "Evaluation returns",
        "How the returns of fresh episodes spread: greedy actions, and actions sampled from the policy.",
        lambda seen: plots.return_histogram(seen.evaluation),
    ),
    (
        "Children",
        "What each child of this parent contributed over time: its speed, its share of the pushes, its distance and its lag.",
        lambda seen: children(seen.rows),
    ),
    (
        "Throughput",
        "Environment steps per second while training.",
        lambda seen: plots.throughput(seen.rows),
    ),
    (
        "Where the time goes",
        "Actors collect; the learner learns, broadcasts weights and waits for experience. As shares of their sum.",
        lambda seen: plots.time_breakdown(seen.rows),
    ),
    (
        "Policy lag",
        "Age of the weights that acted, in updates, over all steps that were learnt from.",
        lambda seen: plots.lag_histogram(seen.rows, seen.lags),
    ),
    (
        "World model",
        "Its error on real steps that it was never shown (state, reward and end together), beside the return.",
        lambda seen: plots.model_error(seen.rows),
    ),
    (
        "Losses",
        "What the algorithm minimised, term by term.",
        lambda seen: plots.losses(seen.rows),
    ),
)


def write_report(
    folder: RunFolder, evaluation: Mapping[str, Any] | None = None, clip: bytes | None = None, no_clip: str = ""
) -> Path:
    """Write `report.html` from the folder's contents, and return its path.

    `evaluation` and `clip` (an mp4) default to the folder's `evaluation.json` and `video.mp4`; `no_clip` says why there is no
    clip. Sections without data are left out. `fault/*` in the metrics counts the faults since the previous row.
    """
    config = folder.read_config()
    summary = read_json(folder.summary_path) if folder.summary_path.exists() else {}
    if evaluation is None and folder.evaluation_path.exists():
        evaluation = read_json(folder.evaluation_path)
    evaluation = ways(evaluation or {})
    if clip is None and not no_clip and folder.video_path.is_file() and folder.video_path.stat().st_size <= _CLIP_MAX:
        clip = folder.video_path.read_bytes()
    everything = read_metrics(folder.metrics_path) if folder.metrics_path.exists() else []
    rows = timeline(everything)
    machine = config.pop("machine", {})
    body = "\n".join(
        [
            _header(folder, config, summary, machine),
            _headline(summary, evaluation, rows),
            '<div class="grid">',
            _video(clip, no_clip),
            *_figures(Seen(rows, evaluation, _target(config), _lags(summary))),
            "</div>",
            _faults(everything, summary),
            _table("Configuration", flattened(config), open_=False),
            _table("Versions and hardware", flattened(machine), open_=False),
        ]
    )
    page = PAGE.replace("{{title}}", escape(_name(folder, config, summary))).replace("{{body}}", body)
    write_atomically(folder.report_path, page.encode())
    return folder.report_path


def _name(folder: RunFolder, config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    parts = [str(summary.get(key) or config.get(key) or "") for key in ("env", "algo", "topology", "runtime")]
    parts = [part for part in parts if part and not part.startswith("{")]
    return " · ".join(parts) or folder.path.name


def _header(
    folder: RunFolder, config: Mapping[str, Any], summary: Mapping[str, Any], machine: Mapping[str, Any]
) -> str:
    facts = [folder.path.name]
    if summary.get("seed") is not None:
        facts.append(f"seed {summary['seed']}")
    if machine.get("cpu"):
        facts.append(f"{machine['cpu']}, {machine.get('cores', '?')} cores")
    name = escape(_name(folder, config, summary))
    return f"<header><h1>{name}</h1><p>{escape(' · '.join(facts))}</p></header>"


def _score(way: str, found: Mapping[str, Any], mean: Any, sd: Any, episodes: Any) -> tuple[str, Any, str, str]:
    """The card of one kind of evaluation, from its episodes or else from the summary."""
    mean, sd, episodes = found.get("mean", mean), found.get("sd", sd), found.get("episodes", episodes)
    how = f"{episodes} {way} episodes" if episodes else ""
    interval = found.get("ci")
    if interval and all(is_number(end) for end in interval):
        how += f"; the mean lies in {_number(interval[0])} to {_number(interval[1])} (95 %)"
    return f"{way} return", mean, f"{_number(mean)}" + (f" ± {_number(sd)}" if is_number(sd) else ""), how


def _headline(summary: Mapping[str, Any], evaluation: Mapping[str, Any], rows: Rows) -> str:
    greedy, sampled = evaluation.get("greedy") or {}, evaluation.get("sampled") or {}
    episodes = summary.get("eval_episodes")
    steps = summary.get("env_steps", rows[-1]["step"] if rows else None)
    speed = summary.get("steps_per_s")
    lag = summary.get("lag_mean")
    middle = greedy.get("iqm", summary.get("eval_iqm"))
    solved, wall = summary.get("solved_at_s"), summary.get("wall_s")
    cards = [
        _score("greedy", greedy, summary.get("eval_mean"), summary.get("eval_sd"), episodes),
        ("interquartile mean", middle, _number(middle), "of the middle half of greedy episodes"),
        _score("sampled", sampled, summary.get("eval_sampled_mean"), summary.get("eval_sampled_sd"), episodes),
        ("solved after", solved, clock(solved), "from the first environment step"),
        ("training", wall, clock(wall), f"and {clock(summary.get('setup_s'))} to set up"),
        ("environment steps", steps, _number(steps), f"{_number(summary.get('updates'))} updates"),
        ("throughput", speed, f"{_number(speed)} / s", "environment steps while training"),
        ("policy lag", lag, _number(lag), f"versions on average, {_number(summary.get('lag_max'))} at most"),
    ]
    boxes = "".join(
        f'<div class="card"><div class="what">{escape(what)}</div><div class="value">{escape(value)}</div>'
        f'<div class="how">{escape(how)}</div></div>'
        for what, known, value, how in cards
        if is_number(known)
    )
    return f'<section class="cards">{boxes}</section>' if boxes else ""


def _lags(summary: Mapping[str, Any]) -> dict[int, int]:
    """The summary's lags with integer keys, which JSON stores as strings."""
    return {int(lag): int(count) for lag, count in (summary.get("lags") or {}).items()}


def _figures(seen: Seen) -> list[str]:
    parts: list[str] = []
    for title, hint, draw in SECTIONS:
        figure = draw(seen)
        if figure is not None:
            wide = " wide" if figure.get_figwidth() > 8 else ""
            picture = render(figure, "svg").decode()
            parts.append(f'<figure class="panel{wide}"><h2>{escape(title)}</h2><p>{escape(hint)}</p>{picture}</figure>')
    return parts


def _video(clip: bytes | None, no_clip: str) -> str:
    if not clip:
        why = f'<figure class="panel"><h2>The agent</h2><p>No clip: {escape(no_clip)}.</p></figure>'
        return why if no_clip else ""
    data = base64.b64encode(clip).decode()
    return (
        '<figure class="panel"><h2>The agent</h2><p>One greedy episode of the trained policy.</p>'
        f'<video controls loop muted playsinline autoplay src="data:video/mp4;base64,{data}"></video></figure>'
    )


def _faults(rows: Rows, summary: Mapping[str, Any]) -> str:
    names = sorted({name for row in rows for name in row if name.startswith("fault/")})
    counts = {name.removeprefix("fault/"): float(series(rows, name)[1].sum()) for name in names}
    counts["in evaluation"] = float(summary.get("eval_faults") or 0)
    happened = {name: f"{count:g}" for name, count in counts.items() if count}
    if not happened:
        return '<p class="calm">No faults occurred.</p>' if rows else ""
    return _table("Faults that the run recovered from", happened, open_=True)


def _table(title: str, values: Mapping[str, Any], *, open_: bool) -> str:
    if not values:
        return ""
    lines = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_cell(value))}</td></tr>" for name, value in values.items()
    )
    return f"<details{' open' if open_ else ''}><summary>{escape(title)}</summary><table>{lines}</table></details>"


def _cell(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_cell(item) for item in value)
    return str(value)


def _target(config: Mapping[str, Any]) -> float | None:
    target = config.get("until_eval") if config.get("until_return") is None else config["until_return"]
    return float(target) if target is not None and is_number(target) else None


def _number(value: Any) -> str:
    if not is_number(value):
        return "-"
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000 or value == int(value)
        else f"{value:.3g}"
        if abs(value) < 1
        else f"{value:.1f}"
    )
