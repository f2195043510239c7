"""Experiments with federations: which runs they start, and what they make of what those leave. Nothing trains here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.federation import experiments
from shoal.observe.comparison import cells
from shoal.observe.comparison_figures import draw
from shoal.studies.reproduce import experiments_folder, read_reference, read_spec

Started = list[tuple[list[str], dict[str, Any]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The runs that an experiment starts; each leaves a folder as a finished one does."""
    found: Started = []

    def run(words: list[str], settings: Mapping[str, Any], out: Path) -> Path:
        found.append((words, dict(settings)))
        out.mkdir(parents=True)
        score = 10.0 * len(found)
        names = ("eval_mean", "eval_sd", "eval_sampled_mean", "eval_sampled_sd", "wall_s", "updates", "exchanges")
        (out / "summary.json").write_text(json.dumps({"bytes_up": 7, **dict.fromkeys(names, score)}))
        returns = [score, score + 1, score + 4]
        (out / "evaluation.json").write_text(json.dumps({"sampled": {"returns": returns, "greedy": False}}))
        lines = [{"step": s, "episode/return": score, "speed/env_steps": s, "speed/updates": s} for s in (1, 2)]
        lines += [{"step": 3, "path/return": score + s, "path/updates": s} for s in (2, 5, 6)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return out

    monkeypatch.setattr(experiments, "finished_run", run)
    return found


def quiet(done: int, of: int, what: str) -> None:
    assert 0 <= done < of and what


def test_variants(started: Started, tmp_path: Path) -> None:
    size = {
        "envs": {"CartPole-v1": 100, "LunarLander-v3": 200},
        "ways": {"int8": {"encoding": "int8"}},
        "alphas": [0.5],
        "betas": [0.0, 1.0],
        "settings": {"algo": "a2c", "children": 2},
        "seeds": 2,
        "eval_episodes": 3,
    }
    found = experiments.variants(size, tmp_path, quiet)
    assert len(started) == 2 * 3 * 2 and all(words[:2] == ["federation", "local"] for words, _ in started)
    assert {(words[2], flags["steps"]) for words, flags in started} == {("CartPole-v1", 100), ("LunarLander-v3", 200)}
    first, second = started[0][1], started[1][1]
    assert (first["encoding"], first["children"], first["seed"]) == ("int8", 2, 0)
    assert (second["alpha"], second["beta"]) == (0.5, 0.0) and "encoding" not in second
    rows = {row["keys"]["way"]: row["values"] for row in found["rows"]}
    assert list(rows)[:3] == ["CartPole-v1 int8", "CartPole-v1 alpha 0.5 beta 0", "CartPole-v1 alpha 0.5 beta 1"]
    assert rows["CartPole-v1 int8"]["mean"] == [10.0, 70.0] and rows["CartPole-v1 int8"]["bytes_up"] == [7, 7]
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert list(figures) == ["curves-CartPole-v1", "curves-LunarLander-v3", "boxes", "density"]
    assert figures["boxes"]["rows"][0] == {
        "name": "CartPole-v1 int8",
        "values": [10.0, 11.0, 14.0, 70.0, 71.0, 74.0],
    }
    for figure in found["figures"]:
        assert draw(figure, {"CartPole-v1 int8": {"mean": 3.0}}).axes


def test_two_children_of_which_one_is_slower_beside_one_machine(started: Started, tmp_path: Path) -> None:
    size = {
        "env": "LunarLander-v3",
        "updates": 4,
        "eval_every": 0,
        "alphas": [0.9],
        "betas": [0.0],
        "settings": {"algo": "a2c", "slow": [1, 2]},
        "steps": 10,
        "ways": {"A3C 4 cores": {"actors": 4}},
        "alone": {"algo": "a2c"},
    }
    found = experiments.versus(size, tmp_path, lambda done, of, what: None)
    assert [words[0] for words, _ in started] == ["train", "federation"]
    assert started[1][1]["slow"] in ([1, 2], (1, 2)) and "slow" not in started[0][1]
    assert [row["keys"]["way"] for row in found["rows"]] == ["Genkidama alpha 0.9 beta 0", "A3C 4 cores"]
    assert [figure["kind"] for figure in found["figures"]] == ["curves", "boxes", "density"]


def test_learning_paths_stand_beside_the_published_ones(started: Started, tmp_path: Path) -> None:
    spec = read_spec(experiments_folder() / "genkidama-alpha-beta")
    size = {**spec["all"], **spec["full"], "updates": 40, "seeds": 2}
    found = experiments.blend(size, tmp_path, quiet)
    paths = [row for row in found["rows"] if "path" in row["keys"]]
    assert len(started) == 9 * 2 and len(paths) == 3 * 20
    assert {(flags["eval_every"], flags["path_every"]) for _, flags in started} == {(0, 200)}
    first, second, third, *later = paths[:20]
    assert first["keys"] == {"path": "alpha 0.1 after 100", "alpha": "0.1"}
    assert first["values"]["beta 0"] == [10.0 + 2, 100.0 + 2], "after 2 of 40 updates"
    assert second["values"]["beta 0"] == [], "after 4: between two snapshots nothing was measured"
    assert third["values"]["beta 0"] == [10.0 + 6, 100.0 + 6]
    assert all(row["values"]["beta 0"] == [] for row in later), "nor beyond the last"
    reference = read_reference(experiments_folder() / "genkidama-alpha-beta" / "reference.csv")
    for row in paths:
        number = int(row["keys"]["path"].rpartition(" ")[2]) // 100 - 1
        for beta in ("beta 0", "beta 0.5", "beta 0.9"):
            published = spec["all"]["published"][f"alpha {row['keys']['alpha']} {beta}"][number]
            assert reference[row["keys"]["path"]][beta] == published
    document = {"rows": found["rows"], "reference": reference}
    tables = [table for table in spec["tables"] if table["key"] == "path"]
    lines = [line for table in tables for line in cells(document, table)]
    assert len(lines) == 60 and all(cell.published for line in lines for cell in line)
    assert [number % 20 for number, line in enumerate(lines) if line[0].ours != "-"] == [0, 2] * 3


def test_the_list_says_what_was_not_run_at_full_size() -> None:
    folder = experiments_folder()
    lines = {line.partition("[")[2].partition("]")[0]: line for line in (folder / "README.md").read_text().splitlines()}
    for spec in folder.glob("genkidama-*/spec.toml"):
        name = spec.parent.name
        ours = spec.parent / "ours.md"
        complete = ours.is_file() and f"Size full, {read_spec(spec.parent)['full']['seeds']} seed" in ours.read_text()
        assert complete != ("full size not run yet" in lines[name]), lines[name]
