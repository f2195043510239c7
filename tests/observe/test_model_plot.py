"""The picture of a world model's error beside the return."""

from __future__ import annotations

from shoal.observe import plots


def rows(**more: float) -> list[dict[str, float]]:
    base = [{"step": 10.0 * i, "time": float(i), "model/error": 1.0 / i} for i in range(1, 6)]
    return [{**row, **more} for row in base]


def test_a_run_without_a_model_has_no_such_picture() -> None:
    assert plots.model_error([{"step": 1, "time": 0.0, "episode/return": 3.0}]) is None


def test_the_error_stands_beside_the_return() -> None:
    figure = plots.model_error(rows(**{"episode/return": 5.0, "episode/count": 2.0}))
    assert figure is not None
    error, returned = figure.axes
    assert error.get_yscale() == "log" and list(error.lines[0].get_ydata()) == [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert list(returned.lines[0].get_ydata()) == [5.0] * 5
    assert plots.render(figure, "svg").startswith(b"<svg")


def test_without_episodes_the_error_stands_alone() -> None:
    figure = plots.model_error(rows())
    assert figure is not None and len(figure.axes) == 1
