"""A driver may hand in more than weights: statistics of others' observations, and moments of the optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driven_env import Levers

from shoal import launch
from shoal.core.algorithm import Moments
from shoal.core.blueprint import named_leaves
from shoal.core.errors import BadInput
from shoal.core.program import Reply, Report
from shoal.experiment import resolve

UPDATES, T, B = 4, 4, 2
OTHERS = 1000.0  # observations made elsewhere


def run(folder: Path, driver: Any, topology: Any, runtime: str = "inline", **settings: Any) -> launch.Result:
    actors = settings.pop("actors", 2)
    algo = {"name": "a2c", "unroll": T, "normalise_obs": True}
    plain = {"net": {"hidden": (4,)}, "envs": B, "actors": actors, "sinks": ["jsonl"], "report_every": 1}
    plan = resolve(
        Levers,
        {
            **plain,
            "algo": algo,
            "topology": topology,
            "runtime": runtime,
            "steps": UPDATES * T * B * actors,
            **settings,
        },
    )
    return launch.run(plan, out=folder / "run", driver=driver, quiet=True)


@pytest.mark.parametrize(
    ("topology", "runtime", "settings"),
    [
        ("sequential", "inline", {}),
        ("sync", "threads", {}),
        ({"name": "actor_learner", "max_lag": 0}, "inline", {"learners": 2}),
        ({"name": "shared_params", "consistency": "hogwild"}, "inline", {}),
        ({"name": "shared_params", "consistency": "lock"}, "threads", {}),
    ],
)
def test_observations_of_others_are_merged_by_counts(
    topology: Any, runtime: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    handed: list[int] = []

    def driver(report: Report) -> Reply | None:
        if handed:
            return None
        handed.append(report.version)
        shape = report.state.obs.mean.shape
        return Reply(statistics=Moments(np.float32(OTHERS), np.full(shape, 3, np.float32), np.zeros(shape, np.float32)))

    alone = run(tmp_path / "alone", lambda report: None, topology, runtime, **settings)
    result = run(tmp_path / "driven", driver, topology, runtime, **settings)
    assert alone.state is not None and result.state is not None
    mine, both = alone.state.obs, result.state.obs
    assert mine is not None and both is not None
    # Other statistics make another policy, whose episodes may end elsewhere: as many rows are seen, but for those at the ends.
    assert float(both.count) == pytest.approx(OTHERS + float(mine.count), abs=0.3 * float(mine.count))
    np.testing.assert_allclose(both.mean, 3, atol=0.5)  # a thousand observations at 3 weigh more than a few others


@pytest.mark.parametrize("topology", ["sync", {"name": "shared_params", "consistency": "lock"}])
def test_moments_are_handed_in(topology: Any, tmp_path: Path) -> None:
    seen: list[float] = []

    def driver(report: Report) -> Reply | None:
        leaves = {name: leaf for name, leaf in named_leaves(report.state).items() if name.startswith("moments/nu/")}
        assert leaves
        seen.append(float(max(leaf.max() for leaf in leaves.values())))
        return Reply(leaves={name: np.full_like(leaf, 7.0) for name, leaf in leaves.items()})

    run(tmp_path, driver, topology, actors=1)
    assert seen[0] < 1.0 and all(6.0 < value < 8.0 for value in seen[1:])


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(leaves={"moments/nowhere": np.zeros(3, np.float32)}), "no such leaf"),
        (
            Reply(statistics=Moments(np.float32(1), np.full(1, np.nan, np.float32), np.zeros(1, np.float32))),
            "not all finite",
        ),
    ],
)
def test_what_does_not_fit_is_refused(reply: Reply, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        run(tmp_path, lambda report: reply, "sequential")


def test_schedules_may_run_over_fewer_steps_than_the_budget(tmp_path: Path) -> None:
    progress: list[float] = []

    def driver(report: Report) -> None:
        progress.append(float(report.state.progress))

    run(tmp_path, driver, "sequential", actors=1, schedule_steps=2 * T * B)
    assert progress == [0.0, 0.5, 1.0, 1.0]
