"""The benchmark of laws keeps what it has measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_slice_is_measured_once_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
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


SLICE = """
import sys
sys.path.insert(0, {benchmarks!r})
import laws
from pathlib import Path
laws.KEPT, laws.TABLE = Path({folder!r}) / "laws.json", Path({folder!r}) / "laws.md"
laws.one = lambda problem, method, knobs, budget, seed: {{method: {{"regret": 0.5, "cpu_s": 1.0}}}}
laws.measure(1, 500, 40, [sys.argv[1]], ["random search"], False)
"""


def test_slices_that_are_measured_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    script = SLICE.format(benchmarks=str(BENCHMARKS), folder=str(tmp_path))
    names = ["sphere", "ackley"]
    running = [subprocess.Popen([sys.executable, "-c", script, name], stderr=subprocess.DEVNULL) for name in names]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    kept = json.loads((tmp_path / "laws.json").read_text())["1 + 1 at 500"]
    assert {name: len(kept[name]["random search"]) for name in names} == dict.fromkeys(names, 40)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["laws.json", "laws.lock", "laws.md"]


def test_curves_of_regret_against_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import laws
    from law_methods import MOST_OF_PROCESS

    assert laws._halves(500) == [62, 125, 250]
    problem = laws.make("sphere", dims=2, free=1, shift=0.2)
    rows = laws.one(problem, "surrogate", 1, 70, 0) | laws.one(problem, "random search", 1, 130, 0)
    ours, other = rows["surrogate"]["curve"], rows["random search, nearest"]["curve"]
    assert [n for n, _ in other] == [65, 130] and other[-1][1] == rows["random search, nearest"]["regret"]
    assert ours[-1] == (70, rows["surrogate"]["regret"]) and len(ours) >= 3
    assert (np.diff([n for n, _ in ours]) > 0).all() and ours[-1][1] < ours[0][1]
    assert "curve" not in laws.one(problem, "random search", 1, 130, 1)["random search, nearest"], "the first seed's"

    found = {"sphere": {who: {"0": row} for who, row in rows.items()}}
    assert laws.curves_of(found)["random search, nearest"] == [tuple(point) for point in other]
    laws.picture({"1 + 1 at 500": found}, tmp_path / "laws.png")
    assert (tmp_path / "laws.png").read_bytes().startswith(b"\x89PNG")
    assert all(len(laws.functions(knobs)) >= 10 for knobs in (1, 2, 3))

    monkeypatch.setattr(laws, "KEPT", tmp_path / "laws.json")
    assert laws.measure(2, MOST_OF_PROCESS + 1, 1, ["sphere"], ["Gaussian process"], False) == {}, "it would take hours"
