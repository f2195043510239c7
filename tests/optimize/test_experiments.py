"""The runners of learn-to-optimize's experiments, at sizes of a few training steps."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.optimize import experiments, timing
from shoal.optimize.functions import FUNCTIONS
from shoal.optimize.timing import Costly


def quiet(done: int, total: int, what: str) -> None:
    assert 0 <= done < total, what


def by_key(found: dict[str, Any], key: str) -> dict[Any, dict[str, list[Any]]]:
    return {row["keys"][key]: row["values"] for row in found["rows"] if key in row["keys"]}


def test_samplers_give_a_row_each(tmp_path: Path) -> None:
    size = {"function": "rosenbrock", "steps": 30, "samplers": ["random", "grid"], "seeds": 1, "episodes": 6}
    found = experiments.samplers(size, tmp_path, quiet)
    rows = by_key(found, "sampler")
    assert list(rows) == ["random", "grid"]
    assert set(rows["grid"]) == {"start", "first_mean", "first_var", "last_mean", "last_var", "best"}
    assert all(len(values) == 1 for row in rows.values() for values in row.values())
    assert rows["random"]["last_mean"] != rows["grid"]["last_mean"]
    [figure] = found["figures"]
    assert figure["y"] == "MSLE"  # not Rosenbrock's MSE, which is in the thousands
    [run] = figure["panels"][0]["lines"][0]["runs"]
    assert run["steps"][0] == 0 and run["steps"][-1] == 30
    assert run["values"][0] == pytest.approx(rows["random"]["start"][0])


@pytest.mark.slow
def test_processes_compute_the_bits_of_one_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {name: way for name, way in experiments.WAYS.items() if "overlapped" not in name}
    monkeypatch.setattr(experiments, "WAYS", ways)
    size = {"problems": {"ackley": 0.3}, "steps": 6, "seeds": 1, "episodes": 6, "drivers": 2}
    found = experiments.convergence(size, tmp_path, quiet)
    weights = {way: values["weights"][0] for way, values in by_key(found, "way").items()}
    assert list(weights) == ["sequential", "inline", "threads", "processes"]
    assert weights["inline"] == weights["threads"] == weights["processes"]
    assert weights["sequential"] != weights["inline"]  # other random numbers
    assert found["notes"] == [
        "ackley: the weights of inline, threads, processes are the same, bit for bit, in 1 of 1 seeds"
    ]


def test_what_has_not_improved_does_not_converge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "WAYS", dict.fromkeys(experiments.SAME_BITS, experiments.WAYS["inline"]))
    size = {"problems": {"ackley": 0.3}, "steps": 2, "seeds": 1, "episodes": 6}
    short = by_key(experiments.convergence(size, tmp_path / "short", quiet), "way")
    assert [values["converges"] for values in short.values()] == [["no"]] * 3
    assert experiments._end([9.0] * 18 + [1.0, 2.0]) == 1.5


def test_a_costly_f_is_ackley_and_burns_its_time() -> None:
    points = np.random.default_rng(0).uniform(-30, 30, (20, 2))
    ours = [Costly(0.0)(x1=a, x2=b) for a, b in points]
    assert np.allclose(ours, np.asarray(FUNCTIONS["ackley"](points)))
    before = time.thread_time()
    Costly(20.0)(x1=0.0, x2=0.0)
    assert 0.02 <= time.thread_time() - before < 0.04
    assert Costly(1.0).problem().kind == "python"


@pytest.mark.slow
def test_runtime_times_each_part_and_compares_with_one_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_room_for", lambda: 1)  # two drivers would not fit: one is left out and named
    size = {
        "drivers": [1, 2],
        "steps": 2,
        "cost_ms": 2.0,
        "episodes": 4,
        "fused_steps": 5,
        "share_episodes": [1, 2],
        "share_steps": 1,
        "share_costs_ms": [0.0],
    }
    found = timing.runtime(size, tmp_path, quiet)
    [only] = by_key(found, "drivers").values()
    assert only["rho"] == [1.0]
    assert 0 < only["rho_star"][0] < 1
    # Twelve evaluations of 2 ms a step; the evaluations at the starts are part of collecting.
    assert only["collecting_s"][0] / timing.PUBLISHED_STEPS >= 0.024
    assert only["training_s"][0] > 0 and only["broadcasting_s"][0] > 0
    assert by_key(found, "runtime")["fused"]["steps_per_s"][0] > 0
    assert "left out for lack of memory" in found["notes"][-1] and "[2]" in found["notes"][-1]
    [speed, times, shares] = found["figures"]
    assert speed["drivers"] == times["drivers"] == [1]
    assert [len(part) for part in shares["panels"][0]["parts"].values()] == [2, 2, 2]


def test_a_run_that_was_stopped_ends_the_experiment() -> None:
    stopped: Any = SimpleNamespace(summary={"steps": 3})
    assert timing.whole(stopped, 3) is stopped
    with pytest.raises(KeyboardInterrupt):
        timing.whole(stopped, 4)


def test_speedup_counts_broadcasting_only_with_the_star() -> None:
    times = [{"collecting": 2.0, "training": 9.0, "broadcasting": 0.5}]
    found = timing._speedups(times, [4.0])
    assert found["rho"] == [2.0] and found["rho_star"] == [1.6]
    assert found["collecting_s"] == [2.0 * timing.PUBLISHED_STEPS]


def test_a_size_with_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="sampler"):
        experiments.samplers({"function": "ackley", "steps": 1, "sampler": "random"}, tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_other_algorithms_have_rows_beside_the_samplers(tmp_path: Path) -> None:
    size = {"function": "rosenbrock", "steps": 30, "samplers": ["random"], "seeds": 1, "episodes": 6}
    found = experiments.samplers({**size, "beside": ["ppo", "surrogate"], "evaluations": 60}, tmp_path, quiet)
    rows = by_key(found, "sampler")
    assert list(rows) == ["random", "ppo", "surrogate"] and rows["ppo"].keys() == rows["random"].keys()
    assert (
        set(rows["surrogate"]) == {"last_mean", "best"} and rows["surrogate"]["best"][0] < 1.0 < rows["ppo"]["best"][0]
    )
    assert [line["name"] for line in found["figures"][0]["panels"][0]["lines"]] == ["random", "ppo"]
    assert "ppo had 540 evaluations" in found["notes"][0] and "surrogate had 60 evaluations" in found["notes"][1]
