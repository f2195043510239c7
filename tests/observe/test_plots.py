"""Figures: they show what the rows say, and nothing where there is nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from shoal.observe import drawing, plots
from shoal.run.timeline import timeline

EVALUATION = {"greedy": {"returns": [1.0, 2.0, 2.0, 9.0], "iqm": 2.0}, "sampled": {"returns": [0.0, 1.0], "iqm": 0.5}}


def rows(count: int = 50) -> list[dict[str, Any]]:
    return [
        {
            "step": 100 * (i + 1),
            "time": 1000.0 + 0.5 * i,
            "episode/return": float(i),
            "episode/return_low": i - 1.0,
            "episode/return_high": i + 2.0,
            "speed/steps_per_s": 200.0,
            "lag/versions": 1.0,
            "loss/policy": 0.1 if i % 2 else None,
            "loss/value": 1.0 / (i + 1),
            "time/collect": 0.3,
            "time/learn": 0.1,
        }
        for i in range(count)
    ]


DRAWN: list[Callable[[plots.Rows], Figure | None]] = [
    plots.learning_curve,
    lambda r: plots.learning_curve(r, "seconds", 30.0),
    plots.throughput,
    plots.time_breakdown,
    plots.lag_histogram,
    plots.losses,
]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("count", [1, 2, 5000])
def test_every_figure_renders_for_short_and_long_runs(draw: Callable[..., Figure | None], count: int) -> None:
    figure = draw(rows(count))
    assert figure is not None
    svg = plots.render(figure).decode()
    assert svg.startswith("<svg") and "http" not in svg and "currentColor" in svg and drawing.INK not in svg
    assert len(svg) < 300_000


@pytest.mark.parametrize("draw", DRAWN)
def test_nothing_to_show_is_no_figure(draw: Callable[..., Figure | None]) -> None:
    assert draw([]) is None
    assert draw([{"step": 1, "time": 1.0, "episode/return": None}]) is None


def test_png_is_a_picture() -> None:
    figure = plots.return_histogram(EVALUATION)
    assert figure is not None and plots.render(figure, "png").startswith(b"\x89PNG")
    above, below = figure.axes
    assert above.get_ylabel() == "greedy episodes" and below.get_ylabel() == "sampled episodes"
    assert above.get_xlim() == below.get_xlim(), "one scale, so that they compare"
    alone = plots.return_histogram({"sampled": EVALUATION["sampled"]})
    assert alone is not None and [axes.get_ylabel() for axes in alone.axes] == ["sampled episodes"]
    assert plots.return_histogram(None) is None and plots.return_histogram({"greedy": {"returns": []}}) is None


def test_checks_on_the_way_are_in_the_curve() -> None:
    checked = [{**row, "eval/return": 7.0} if i == 40 else row for i, row in enumerate(rows())]
    figure = plots.learning_curve(checked)
    assert figure is not None
    [dots] = [line for line in figure.axes[0].lines if "evaluation" in str(line.get_label())]
    assert (dots.get_xdata()[0], dots.get_ydata()[0]) == (4100.0, 7.0)  # type: ignore[index]


def test_the_curve_holds_the_values() -> None:
    figure = plots.learning_curve(rows(), target=30.0)
    assert figure is not None
    curve, target = figure.axes[0].lines
    assert np.asarray(curve.get_xdata()).tolist() == [100 * (i + 1) for i in range(50)]
    assert np.asarray(curve.get_ydata()).tolist() == list(range(50))
    assert next(iter(target.get_ydata())) == 30.0
    assert len(figure.axes[0].collections) == 1  # the band
    bare = plots.learning_curve([{k: v for k, v in row.items() if "low" not in k} for row in rows()])
    assert bare is not None and not bare.axes[0].collections


def test_the_mean_of_the_last_100_episodes_is_what_it_says() -> None:
    counts = np.random.default_rng(0).integers(1, 40, 60).astype(float)
    means = np.random.default_rng(1).normal(0, 1, 60)
    steady = plots._trailing(means, counts)
    for i in range(60):
        j = i
        while j > 0 and counts[j : i + 1].sum() < 100 and counts[j - 1 : i + 1].sum() <= 100:
            j -= 1
        assert steady[i] == pytest.approx(np.average(means[j : i + 1], weights=counts[j : i + 1]))
    figure = plots.learning_curve([{**row, "episode/count": 10.0} for row in rows()])
    assert figure is not None
    assert np.asarray(figure.axes[0].lines[1].get_ydata())[-1] == pytest.approx(44.5)


def test_recorded_seconds_come_before_the_clock() -> None:
    timed: list[dict[str, Any]] = [
        {"time": 0.0, "speed/seconds": 3.0},
        {"time": 1.0},
        {"time": 9.0, "speed/seconds": 5.0},
    ]
    assert plots.elapsed(timed).tolist() == [3, 4, 5]


def test_a_thinned_curve_keeps_its_mean_and_ends() -> None:
    x, y = drawing.thinned(np.arange(9999.0), np.arange(9999.0) ** 2)
    assert len(x) == 300 and np.all(np.diff(x) > 0) and x[0] < 30 and x[-1] > 9960
    assert y.mean() == pytest.approx((np.arange(9999.0) ** 2).mean(), rel=0.01)


def test_shares_of_time_add_up_to_the_whole() -> None:
    figure = plots.time_breakdown(rows())
    assert figure is not None
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "collect 75 %",
        "learn 25 %",
        "broadcast 0 %",
        "wait 0 %",
    ]


def test_what_a_resumed_run_did_again_replaces_what_it_had_done() -> None:
    done = [{"step": s, "time": float(s), "v": v} for s, v in [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (4, 1)]]
    assert [(r["step"], r["v"]) for r in timeline(done)] == [(1, 0), (2, 1), (3, 1), (4, 1)]


def test_the_pause_before_a_resumption_is_not_running_time() -> None:
    times = [0.0, 1.0, 2.0, 90_000.0, 90_001.0, 89_000.0, 89_001.0]
    assert plots.elapsed([{"time": t} for t in times]).tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_throughput_is_derived_where_it_was_not_recorded() -> None:
    figure = plots.throughput([{k: v for k, v in row.items() if not k.startswith("speed")} for row in rows()])
    assert figure is not None
    assert np.asarray(figure.axes[0].lines[0].get_ydata()) == pytest.approx(200.0)


def test_lags_that_were_counted_are_shown_by_their_share_of_the_steps() -> None:
    figure = plots.lag_histogram(rows(), {0: 30, 7: 10})
    assert figure is not None
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in figure.axes[0].patches}
    assert bars[0] == 75 and bars[7] == 25 and sum(bars.values()) == 100
