"""JSON that Shoal writes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from shoal.run.files import one_line


def test_one_line_is_json_for_every_reader() -> None:
    """Python's own writer would print NaN and Infinity, which no other reader takes."""
    document = {
        "rows": [1.5, math.nan, math.inf],
        "of": np.float32(0.5),
        "many": np.arange(2),
        "at": Path("a"),
        "é": (),
    }
    text = one_line(document)
    assert "\n" not in text and "NaN" not in text and "Infinity" not in text
    assert json.loads(text) == {"rows": [1.5, None, None], "of": 0.5, "many": [0, 1], "at": "a", "é": []}
