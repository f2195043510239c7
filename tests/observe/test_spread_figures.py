"""Densities that integrate to one, and boxes with the published mean."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.observe.spread_figures import boxes, density, gaussian_density


@pytest.mark.parametrize("values", [[0.0, 1.0, 5.0, 5.5], [3.0], [3.0] * 9, [3.0] * 9 + [4.0]])
def test_a_density_integrates_to_one(values: list[float]) -> None:
    at = np.linspace(-40, 50, 20_001)
    heights = gaussian_density(np.array(values), at)
    assert (heights >= 0).all()
    assert float(np.trapezoid(heights, at)) == pytest.approx(1.0, abs=1e-3)


def test_a_density_is_that_of_its_kernel() -> None:
    values = np.random.default_rng(0).normal(10, 2, 2000)
    at = np.linspace(0, 20, 41)
    known = np.exp(-0.5 * ((at - 10) / 2) ** 2) / (2 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(gaussian_density(values, at), known, atol=0.015)


def test_boxes_show_quartiles_and_the_published_mean() -> None:
    rows = [{"name": "a", "values": [1.0, 2.0, 3.0, 4.0, 5.0]}, {"name": "b", "values": [7.0]}]
    picture = boxes({"rows": rows, "x": "return"}, {"a": {"mean": 6.0}, "c": {"mean": 9.0}})
    [axes] = picture.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    [published] = [line for line in axes.lines if line.get_label() == "published mean"]
    assert np.asarray(published.get_xdata()).tolist() == [6.0] and np.asarray(published.get_ydata()).tolist() == [0]
    assert len(axes.patches) == 2
    assert density({"rows": rows, "x": "return"}, {}).axes
