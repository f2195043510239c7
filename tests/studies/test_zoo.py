"""The zoo: what is trained and evaluated, what a row says, and that a partial run changes only its rows of the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.core.config import build
from shoal.core.errors import BadInput, RunFailed
from shoal.process.commands import Finished
from shoal.studies import finished
from shoal.studies import zoo as module
from shoal.studies.reproduce import read_reference, read_spec
from shoal.studies.zoo import FRESH, ZooConfig, chosen_agents, zoo
from shoal.studies.zoo_page import BEGIN, END, Measured, in_time, reached, read_rows, table, with_table
from shoal.tuned import TUNED

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "experiments" / "zoo"
AGENTS = {"CartPole-v1": ["ppo", "dqn"], "Pendulum-v1": ["sac"]}
SIZE: dict[str, Any] = {"agents": AGENTS, "episodes": 4, "seeds": 4, "publish": True}


class Commands:
    """Instead of processes: run folders and evaluations as told. `limits` are the seconds that trainings may take."""

    ended = "budget"

    def __init__(self, score: float = 400.0, broken: Sequence[str] = (), interrupted_at: int = -1) -> None:
        self.score, self.broken, self.words = score, broken, list[list[str]]()
        self.interrupted_at, self.limits = interrupted_at, set[float | None]()

    def __call__(self, words: Sequence[str], seconds: float | None = None) -> Finished:
        if len(self.words) == self.interrupted_at:
            raise KeyboardInterrupt
        self.words.append(list(words))
        self.limits |= {seconds} if words[0] == "train" else set()
        if words[0] == "train":
            if any(f"{words[1]} {words[3]}" == name for name in self.broken):
                return Finished(1, "", "shoal: it diverged\n")
            out = Path(words[words.index("--out") + 1])
            out.mkdir(parents=True)
            (out / "summary.json").write_text(json.dumps({"ended": self.ended, "env_steps": 5000, "wall_s": 2.5}))
            return Finished(0, "", "")
        seed = int(words[words.index("--seed") + 1])
        return Finished(0, json.dumps({"eval_mean": self.score + seed - FRESH, "eval_faults": 0}) + "\n", "")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source checkout with a zoo of three agents and an empty page."""
    (tmp_path / "experiments" / "zoo").mkdir(parents=True)
    (tmp_path / "experiments" / "zoo" / "reference.csv").write_text("row,score,steps\nCartPole-v1 ppo,500,100000\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "zoo.md").write_text(f"# The zoo\n\n{BEGIN}\n{END}\n\nAfter.\n")
    monkeypatch.setattr(module, "experiments_folder", lambda: tmp_path / "experiments")
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, checkout: Path, commands: Commands, **changed: Any) -> dict[str, Any]:
    monkeypatch.setattr(finished, "run_command", commands)
    return zoo({**SIZE, **changed}, checkout / f"runs-{id(commands)}", lambda done, total, what: None)


def test_an_agent_is_trained_as_by_default_and_evaluated_on_fresh_seeds(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands()
    found = run(monkeypatch, checkout, commands, only_envs=["CartPole-v1"], only_algos=["ppo"])
    train, evaluate = commands.words[0], commands.words[1]
    assert train[:4] == ["train", "CartPole-v1", "--algo", "ppo"]
    assert {word.partition("=")[0] for word in train if word.startswith("--")} == {
        *("--algo", "--out", "--quiet", "--no-report", "--seed", "--eval-episodes", "--sinks")
    }
    assert evaluate[evaluate.index("--seed") + 1] == str(FRESH) and "--sample" not in evaluate
    [row] = found["rows"]
    values = row["values"]
    assert row["keys"] == {"agent": "CartPole-v1 ppo"} and values["reached"] == ["no"]
    assert values["score"]["mean"] == 401.5 and values["score"]["ci"][0] < 401.5 < values["score"]["ci"][1]
    assert values["steps"] == [5000.0] * 4 and values["seconds"] == [2.5] * 4


def test_a_partial_run_changes_only_its_rows(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = checkout / "docs" / "zoo.md"
    run(monkeypatch, checkout, Commands(400.0), only_envs=["CartPole-v1"])
    before = page.read_text()
    assert before.startswith("# The zoo\n") and before.endswith("\n\nAfter.\n")
    assert "Measured: 2 of 3 agents. RL Zoo's score is reached on 0 of 1 environments" in before
    run(monkeypatch, checkout, Commands(600.0), only_algos=["ppo"])
    after = page.read_text()
    changed = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
    assert [b.split(" | ")[1] for _, b in changed[1:]] == ["ppo"], "the sentence above the table, and one row"
    assert "reached on 1 of 1" in changed[0][1]
    assert list(read_rows(checkout / "experiments" / "zoo" / "ours.json")) == ["CartPole-v1 ppo", "CartPole-v1 dqn"]
    assert "| Pendulum-v1 | sac |  |" in after, "not measured yet"


def test_an_interrupted_run_goes_on_with_the_missing_agents(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, checkout, Commands(interrupted_at=9), missing=True)
    assert list(read_rows(checkout / "experiments" / "zoo" / "ours.json")) == ["CartPole-v1 ppo"]
    commands = Commands()
    found = run(monkeypatch, checkout, commands, missing=True)
    assert [row["keys"]["agent"] for row in found["rows"]] == ["CartPole-v1 dqn", "Pendulum-v1 sac"]
    assert len(commands.words) == 2 * 2 * 4, "nothing of the agent that was done"
    with pytest.raises(BadInput, match="already; without --missing they are measured again"):
        run(monkeypatch, checkout, commands, missing=True)


def test_a_row_of_fewer_seeds_is_missing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, checkout, Commands(), only_envs=["CartPole-v1"], only_algos=["ppo"], seeds=2)
    run(monkeypatch, checkout, Commands(), only_envs=["CartPole-v1"], only_algos=["dqn"], seeds=5)
    found = run(monkeypatch, checkout, Commands(), missing=True)
    assert [row["keys"]["agent"] for row in found["rows"]] == ["CartPole-v1 ppo", "Pendulum-v1 sac"]
    rows = read_rows(checkout / "experiments" / "zoo" / "ours.json")
    assert {name: row.seeds for name, row in rows.items()} == {
        "CartPole-v1 ppo": 4,
        "CartPole-v1 dqn": 5,
        "Pendulum-v1 sac": 4,
    }


def test_the_page_says_how_loaded_the_machine_was_and_which_budget_was_asked_for(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "getloadavg", lambda: (7.25, 3.0, 1.0))
    commands = Commands()
    run(monkeypatch, checkout, commands, only_envs=["CartPole-v1"], budgets={"CartPole-v1 dqn": 4000})
    page = (checkout / "docs" / "zoo.md").read_text().splitlines()
    [ppo, dqn] = [line.split(" | ") for line in page if line.startswith("| CartPole-v1 ")]
    assert page[page.index(BEGIN) + 4].split(" | ")[8:10] == ["seconds", "load"]
    assert ppo[6] == "5,000" and ppo[8:10] == ["2", "7.2"]
    assert dqn[6] == "5,000 (`--steps 4000`)"
    asked = [word.partition("=")[2] for words in commands.words for word in words if word.startswith("--steps=")]
    assert asked == ["4000"] * 4


def test_a_run_that_takes_too_long_is_ended_and_evaluated(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(600.0)
    commands.ended = "paused"
    run(monkeypatch, checkout, commands, only_envs=["CartPole-v1"], only_algos=["ppo"], minutes=5)
    assert commands.limits == {300.0}
    page = (checkout / "docs" / "zoo.md").read_text()
    assert "| 5,000 (ended after 5 min) |" in page and read_rows(checkout / "experiments" / "zoo" / "ours.json")
    free = Commands(600.0)
    run(monkeypatch, checkout, free, only_envs=["CartPole-v1"], only_algos=["ppo"])
    assert free.limits == {None} and "ended after" not in (checkout / "docs" / "zoo.md").read_text()


def test_a_row_by_earlier_settings_is_missing_and_marked(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {**TUNED["CartPole-v1", "ppo"], "steps": 4096}
    with monkeypatch.context() as patched:
        patched.setitem(TUNED, ("CartPole-v1", "ppo"), before)
        run(monkeypatch, checkout, Commands(), only_envs=["CartPole-v1"], only_algos=["ppo"])
        page = (checkout / "docs" / "zoo.md").read_text()
        with pytest.raises(BadInput, match="by today's settings"):
            run(monkeypatch, checkout, Commands(), only_envs=["CartPole-v1"], only_algos=["ppo"], missing=True)
    run(monkeypatch, checkout, Commands(), only_envs=["CartPole-v1"], only_algos=["dqn"])
    marked = (checkout / "docs" / "zoo.md").read_text()
    assert "earlier settings" not in page and marked.count("with earlier settings") == 1
    found = run(monkeypatch, checkout, Commands(), missing=True)
    assert [row["keys"]["agent"] for row in found["rows"]] == ["CartPole-v1 ppo", "Pendulum-v1 sac"]
    assert "earlier settings" not in (checkout / "docs" / "zoo.md").read_text()


def test_the_page_says_whether_the_score_was_reached_in_300_s() -> None:
    about = {"env": "e", "algo": "a", "steps": 1.0, "seeds": 5, "episodes": 1, "ci": None, "date": "", "machine": ""}
    rows = [Measured(**about, score=score, seconds=s) for score, s in ((10, 299), (10, 301), (9, 10))]  # type: ignore[arg-type]
    assert [in_time(row, 10.0) for row in rows] == ["yes", "no", "no"] and in_time(rows[0], None) == ""
    [summary, *lines] = table({"e a": rows[0]}, {"e a": {"score": 10.0}}, {"e": ["a"]})
    assert summary.endswith("reached on 1 of 1 environments with a published score, and within 300 s on 1.")
    assert lines[1].split(" | ")[5] == "within 300 s" and lines[3].split(" | ")[5] == "yes"


def test_an_agent_that_fails_on_a_seed_has_no_score(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, checkout, Commands(broken=["CartPole-v1 dqn"]))
    assert [row["keys"]["agent"] for row in found["rows"]] == ["CartPole-v1 ppo", "Pendulum-v1 sac"]
    assert found["notes"] == ["CartPole-v1 dqn has no score: it diverged"]
    assert "CartPole-v1 dqn" not in read_rows(checkout / "experiments" / "zoo" / "ours.json")
    with pytest.raises(RunFailed, match="has no score: it diverged"):
        run(monkeypatch, checkout, Commands(broken=["CartPole-v1 dqn"]), only_algos=["dqn"])


def test_a_small_size_is_not_published(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (checkout / "docs" / "zoo.md").read_text()
    run(monkeypatch, checkout, Commands(), publish=False, settings={"steps": 64})
    assert (checkout / "docs" / "zoo.md").read_text() == before
    assert not (checkout / "experiments" / "zoo" / "ours.json").exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"only_envs": ["CartPole-v2"]}, r"no environment 'CartPole-v2'\. Did you mean 'CartPole-v1'"),
        ({"budgets": {"CartPole-v1 pp": 5}}, r"budgets has 'CartPole-v1 pp', .* Did you mean 'CartPole-v1 ppo'"),
        ({"only_algos": ["pp"]}, r"no algorithm 'pp'\. Did you mean 'ppo'"),
        ({"only_envs": ["Pendulum-v1"], "only_algos": ["dqn"]}, "no dqn on Pendulum-v1"),
    ],
)
def test_what_is_not_in_the_zoo_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        chosen_agents(build(ZooConfig, {**SIZE, **changed}))


def test_reached_is_judged_by_the_score_and_its_interval() -> None:
    def row(score: float, ci: tuple[float, float] | None) -> Measured:
        about = {"env": "e", "algo": "a", "steps": 1.0, "seconds": 1.0, "seeds": 2, "episodes": 1}
        return Measured(**about, score=score, ci=ci, date="", machine="")  # type: ignore[arg-type]

    assert reached(row(10, (9, 11)), 10.0) == "yes" and reached(row(9, (8, 10)), 10.0) == "within"
    assert reached(row(9, (8, 9.5)), 10.0) == "no" and reached(row(9, None), 10.0) == "no"
    assert reached(row(9, None), None) == ""


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zoo.md").write_text(f"{BEGIN}\n")
    with pytest.raises(BadInput, match="has no place for the table"):
        with_table(tmp_path / "zoo.md", [])


def test_the_page_is_made_from_the_measured_rows() -> None:
    agents, reference = read_spec(ZOO)["all"]["agents"], read_reference(ZOO / "reference.csv")
    page = ROOT / "docs" / "zoo.md"
    made = with_table(page, table(read_rows(ZOO / "ours.json"), reference, agents))
    assert page.read_text() == made, "docs/zoo.md was edited by hand, or ours.json without it"
    listed = {f"{env} {algo}" for env, algos in agents.items() for algo in algos}
    assert set(reference) <= listed and len(reference) == 46
