"""The picture of a federation's children."""

from __future__ import annotations

from shoal.observe import plots
from shoal.observe.children_plot import children


def rows(names: list[str]) -> list[dict[str, float]]:
    return [
        {
            "step": 10.0 * i,
            "time": float(i),
            **{f"child/{name}/{what}": i / 10 for name in names for what in ("rate", "share", "distance", "lag")},
        }
        for i in range(1, 6)
    ]


def test_a_run_without_children_has_no_such_picture() -> None:
    assert children([{"step": 1, "time": 0.0, "episode/return": 3.0}]) is None


def test_each_child_has_a_line_in_each_picture() -> None:
    figure = children(rows(["one", "pi-3"]))
    assert figure is not None and len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["one", "pi-3"]
        assert list(axes.lines[0].get_ydata()) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert plots.render(figure, "svg").startswith(b"<svg")


def test_a_child_that_came_late_begins_late() -> None:
    table = rows(["one"])
    table[-1] |= {"child/two/share": 0.5, "child/two/rate": 1.0}
    figure = children(table)
    assert figure is not None
    rate, share, distance, _ = figure.axes
    assert len(rate.lines) == len(share.lines) == 2 and len(distance.lines) == 1
