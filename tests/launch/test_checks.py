"""`--until-eval`: three checks in a row, of a policy that is kept, beside a training that does not wait for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import shoal
from shoal.acting.player import Played
from shoal.core.errors import BadInput
from shoal.core.keys import CHECKING, key_data
from shoal.experiment import Settings, resolve
from shoal.launch.checks import EPISODES, Checks
from shoal.launch.evaluation import EvaluationFailed, Evaluator


class Scripted:
    """An evaluator whose checks end at once, with returns that are written down."""

    apart = True

    def __init__(self, returns: list[float]) -> None:
        self._returns, self.seeds = returns, []  # type: ignore[var-annotated]

    def start(self) -> None:
        return None

    def begin(self, actor: Any, episodes: int, *, sample: bool, seed: int) -> None:
        self.seeds.append((sample, seed))
        self._episodes = episodes

    def look(self) -> Played:
        if not self._returns:
            raise EvaluationFailed("21 faults")
        ret = self._returns.pop(0)
        return Played([ret] * self._episodes, [1] * self._episodes)


def checks(returns: list[float], said: list[str], **settings: Any) -> tuple[Checks, Scripted]:
    evaluator = Scripted(returns)
    algorithm = SimpleNamespace(actor_state=lambda state: state)
    made: Any = Checks(evaluator, algorithm, Settings(until_eval=10.0, **settings), said.append)  # type: ignore[arg-type]
    return made, evaluator


def run_through(made: Checks, weights: np.ndarray, updates: int) -> list[tuple[int, float]]:
    """(environment steps, return) of each check, until three in a row have reached the goal."""
    found = []
    for update in range(updates):
        weights[:] = update
        check = made.look(SimpleNamespace(state={"w": weights}), 100 * update, float(update))  # type: ignore[arg-type]
        if check is not None:
            found.append((check.env_steps, check.ret))
        if made.established:
            break
    return found


def test_three_in_a_row_and_the_weights_that_were_checked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1_000_000))
    monkeypatch.setattr("shoal.launch.checks.time.monotonic", lambda: float(next(now)))
    weights, said = np.zeros(3), []  # type: ignore[var-annotated]
    made, evaluator = checks([12, 9, 11, 10, 12], said)
    found = run_through(made, weights, 1000)
    assert [ret for _, ret in found] == [12, 9, 11, 10, 12] and made.established and not said
    assert made.state["w"].tolist() == [found[-1][0] / 100] * 3, "a copy of what was checked, though training went on"
    assert len(set(evaluator.seeds)) == 5 and not any(sample for sample, _ in evaluator.seeds)
    assert "greedy evaluation 12.0 (target 10, reached 3 of 3" in made.line
    assert checks([], said, until_eval_by="sampled")[0].line.startswith("sampled evaluation -")


def test_what_cannot_be_evaluated_is_said_once_and_training_goes_on() -> None:
    said: list[str] = []
    made, _ = checks([11, 12], said)
    assert [ret for _, ret in run_through(made, np.zeros(3), 100)] == [11, 12] and not made.established
    [line] = said
    assert "--until-eval is given up" in line and "21 faults" in line


def test_where_no_process_can_be_started_it_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--until-eval starts a process.*MPI"):
        resolve("CartPole-v1", {"until_eval": 10, "runtime": "mpi"})


QUIET: dict[str, Any] = {
    "net": {"hidden": (8,)},
    "eval_episodes": 0,
    "sinks": ("jsonl",),
    "quiet": True,
    "report": False,
}


@pytest.mark.parametrize(
    ("algo", "topology", "runtime"),
    [
        ("a2c", "sync", "inline"),
        ("a2c", "shared_params", "threads"),
        pytest.param("ppo", "actor_learner", "processes", marks=pytest.mark.slow),
        pytest.param("a2c", "sequential", "fused", marks=pytest.mark.slow),
    ],
)
def test_a_run_ends_when_its_policy_is_established(tmp_path: Path, algo: str, topology: str, runtime: str) -> None:
    actors = {} if runtime == "fused" else {"actors": 2, "envs": 2}
    run = shoal.train(
        "CartPole-v1",
        algo={"name": algo, "unroll": 8},
        topology=topology,
        runtime=runtime,
        steps=50_000_000,
        until_eval=1.0,
        out=tmp_path / "run",
        **actors,
        **QUIET,
    )
    summary = run.summary
    assert len(summary["eval_checks"]) == 3 and all(check["ret"] >= 1 for check in summary["eval_checks"])
    assert 0 < summary["solved_at_s"] <= summary["wall_s"] and not summary["stopped"]
    assert summary["eval_checks"][-1]["env_steps"] <= summary["env_steps"] < 50_000_000
    rows = [msgspec.json.decode(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    shown = [row["eval/return"] for row in rows if "eval/return" in row]
    assert shown == [check["ret"] for check in summary["eval_checks"]]
    assert run.params_hash == summary["params_sha256"], "the checkpoint holds the policy that was checked"
    with Evaluator(run.plan) as evaluator:  # the very episodes of the last check, by the weights that were saved
        evaluator.apart = False
        again = evaluator.play(run._trained[0], EPISODES, sample=False, seed=int(key_data(0, CHECKING, 2)[0]))
    assert np.mean(again.returns) == summary["eval_checks"][-1]["ret"]


def test_how_to_evaluate_goes_with_when() -> None:
    with pytest.raises(BadInput, match="--until-eval-by is 'sampled': it goes with --until-eval"):
        resolve("CartPole-v1", {"until_eval_by": "sampled"})
    assert resolve("CartPole-v1", {"until_eval_by": "sampled", "until_eval": 3.0}).settings.until_eval == 3.0
