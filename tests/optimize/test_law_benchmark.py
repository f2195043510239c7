"""The benchmark of laws keeps what it has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_a_slice_is_measured_once_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import laws

    measured: list[tuple[str, int]] = []

    def one(problem: Any, method: str, knobs: int, budget: int, seed: int) -> dict[str, dict[str, Any]]:
        measured.append((method, seed))
        ours = {"surrogate": 0.01 * budget / 500, "policy": 0.02}
        found = ours if method == "surrogate" else {f"{method}, nearest": 0.015, f"{method}, net": 0.03}
        return {name: {"regret": regret, "cpu_s": 1.0} for name, regret in found.items()}

    monkeypatch.setattr(laws, "one", one)
    monkeypatch.setattr(laws, "KEPT", tmp_path / "laws.json")
    monkeypatch.setattr(laws, "TABLE", tmp_path / "laws.md")
    first = ["surrogate", "CMA-ES"]
    laws.measure(1, 500, 2, ["sphere"], first, False)
    assert measured == [(method, seed) for method in first for seed in (0, 1)]
    found = laws.measure(1, 500, 3, ["sphere"], first, False)
    assert measured[4:] == [("surrogate", 2), ("CMA-ES", 2)], "only what is missing"
    assert laws.behind(found) == [] and laws.summary(found)[0]["iqm"] in (0.01, 0.015)
    other = laws.measure(1, 2000, 1, ["sphere"], first, False)
    assert laws.behind(other) == ["sphere (CMA-ES, nearest 0.015, surrogate 0.04)"]
    assert len(laws.kept()["1 + 1 at 500"]["sphere"]["policy"]) == 3, "the other slice is kept"
    assert (
        "| surrogate | 0.01 (0.01 to 0.01; 1 x 3) | 0.04 (0.04 to 0.04; 1 x 1) |" in (tmp_path / "laws.md").read_text()
    )
