"""The picture of regulation: one line for each controller in each panel, with its mean error."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.observe.plots import render
from shoal.observe.regulation import regulation


def test_every_controller_is_drawn_with_its_mean_error() -> None:
    errors, settings = np.array([0.5, -0.5, 0.2]), np.zeros(3)
    figure = regulation({"pi": (errors, settings), "agent": (errors / 2, settings + 1)})
    above, below = figure.axes
    labels = [text.get_text() for text in above.get_legend().get_texts()]
    assert labels == ["pi: mean |IMINER| 0.400", "agent: mean |IMINER| 0.200"]
    assert np.array_equal(above.lines[1].get_ydata(), errors / 2)
    assert np.array_equal(below.lines[1].get_ydata(), settings + 1)
    assert b"synthetic plant" in render(figure)


def test_traces_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(BadInput, match="0 controllers to draw: 1 to 4"):
        regulation({})
    with pytest.raises(BadInput, match="'pi' has shapes"):
        regulation({"pi": (np.zeros(3), np.zeros(4))})
