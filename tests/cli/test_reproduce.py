"""`shoal reproduce`: the folders of experiments are whole, the report tells ours from theirs, refusals are one line."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import reproduce as command
from shoal.cli.main import main
from shoal.core.config import build
from shoal.core.errors import BadInput
from shoal.observe.comparison import cells, differences, goals, markdown, write_comparison
from shoal.studies import reproduce

ROOT = Path(__file__).parents[2] / "experiments"
NAMES = reproduce.names(ROOT)
PNG = b"\x89PNG"

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shoal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


def checkout(folder: Path, spec: str, reference: str = "row,best\nrandom,0.5\n") -> Path:
    """A source checkout with one experiment, `tiny`."""
    tiny = folder / "experiments" / "tiny"
    tiny.mkdir(parents=True)
    (tiny / "spec.toml").write_text(spec)
    (tiny / "reference.csv").write_text(reference)
    (tiny / "README.md").write_text(
        "# Tiny\n\n## Deviations\n\n- It is `small`,\n  and quick.\n- Two.\n\n## After\n\n- no\n"
    )
    return folder / "experiments"


TINY = """
title = "Tiny"
source = "nowhere"
runner = "optimize:samplers"
[all]
function = "sphere"
samplers = ["random"]
episodes = 3
[full]
steps = 20
[quick]
steps = 10
seeds = 1
[[tables]]
title = "MSE"
key = "sampler"
dots = ["best"]
columns = { best = "the best" }
[[goals]]
what = "good"
row = { sampler = "random" }
column = "best"
at_most = 1e9
"""


def document(**changes: Any) -> dict[str, Any]:
    """What a finished experiment of two rows leaves."""
    table = {
        "title": "T",
        "key": "way",
        "columns": {"loss": "loss", "speed": "speed", "works": "works"},
        "higher": ["speed"],
    }
    rows = [
        {"keys": {"way": "a"}, "values": {"loss": [1.0, 3.0], "speed": [5.0, 7.0], "works": ["yes", "yes"]}},
        {"keys": {"way": "b"}, "values": {"loss": [8.0, 9.0], "speed": [1.0, 1.1], "works": ["yes", "no"]}},
    ]
    return {
        "title": "Title",
        "source": "Source",
        "size": "full",
        "seeds": 2,
        "took_s": 1.0,
        "machine": {"cores": 2, "cpu": "C"},
        "tables": [table],
        "goals": [{"what": "fast", "row": {"way": "a"}, "column": "speed", "at_least": 6.5}],
        "rows": rows,
        "figures": [],
        "reference": {"a": {"loss": 10.0, "speed": 6.0, "works": "no"}, "b": {"loss": 2.0}},
        "notes": ["a note"],
        "deviations": ["because"],
        **changes,
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_whole(name: str) -> None:
    spec = reproduce.read_spec(ROOT / name)
    runner = command.find_runner(spec["runner"], name)
    module = importlib.import_module(runner.__module__)
    config = getattr(module, f"{runner.__name__.capitalize()}Config")
    for size in ("full", "quick"):
        build(config, {**spec["all"], **spec[size]})  # every entry is a setting of the right type
    columns = {column for table in spec["tables"] for column in table["columns"]}
    reference = reproduce.read_reference(ROOT / name / "reference.csv")
    assert reference or "print no numbers" in (ROOT / name / "README.md").read_text()
    assert {column for row in reference.values() for column in row} <= columns
    assert {goal["column"] for goal in spec.get("goals", [])} <= columns
    assert reproduce.read_deviations(ROOT / name / "README.md")


def test_the_published_numbers_are_there() -> None:
    assert set(NAMES) >= {"lto-ackley", "lto-rosenbrock", "lto-convergence", "lto-runtime"}
    runtime = reproduce.read_reference(ROOT / "lto-runtime" / "reference.csv")
    assert runtime["64"] == {"collecting_s": 1264.0, "rho": 24.01, "rho_star": 11.93}
    ackley = reproduce.read_reference(ROOT / "lto-ackley" / "reference.csv")
    assert ackley["latin_hypercube"]["best"] == 0.00081
    assert reproduce.read_reference(ROOT / "lto-convergence" / "reference.csv")["processes"] == {"converges": "no"}


def test_an_experiment_from_its_folder_to_its_report(
    shoal: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path / "checkout", TINY)
    monkeypatch.setattr(command, "experiments_folder", lambda: root)
    code, out, err = shoal("reproduce", "tiny", "--quick", "--seeds", "2", "--out", "here", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["name"] == "tiny" and told["size"] == "quick" and told["seeds"] == 2
    assert len(told["rows"][0]["values"]["best"]) == 2
    assert told["goals"][0]["met"] is None  # the quick size is not judged
    assert "1 of 2: sphere" in err and "2 of 2: sphere" in err
    made = {path.name for path in (tmp_path / "here").iterdir()}
    assert made == {
        "experiment.json",
        "results.json",
        "table.md",
        "report.html",
        "curves.png",
        "dots-0-best.png",
        "runs",
    }
    assert (tmp_path / "here" / "curves.png").read_bytes().startswith(PNG)
    saved = json.loads((tmp_path / "here" / "results.json").read_text())
    assert saved["deviations"] == ["It is `small`, and quick.", "Two."]
    assert saved["rows"] == told["rows"]
    table = (tmp_path / "here" / "table.md").read_text()
    assert "| random " in table and "| 0.5 " in table and table in err
    page = (tmp_path / "here" / "report.html").read_text()
    assert "<code>small</code>" in page and page.count("<svg") == 2 and "http" not in page.split("</style>")[1]


class TestResume:
    """`--resume FOLDER` runs what is missing, with the settings that the experiment began with."""

    @pytest.fixture
    def trained(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The seeds that a runner trained, one after another; with the file `stop` it is stopped after the first."""
        root = checkout(tmp_path / "checkout", TINY)
        monkeypatch.setattr(command, "experiments_folder", lambda: root)
        seeds: list[int] = []

        def runner(size: dict[str, Any], folder: Path, tell: Any) -> dict[str, Any]:
            for seed in range(size["seeds"]):
                if (folder / str(seed)).exists():
                    continue
                (folder / str(seed)).mkdir(parents=True)
                seeds.append(seed)
                if (tmp_path / "stop").exists():
                    raise KeyboardInterrupt
            values = {"best": [float(seed) for seed in range(size["seeds"])]}
            return {"rows": [{"keys": {"sampler": "random"}, "values": values}], "figures": [], "notes": []}

        monkeypatch.setattr(command, "find_runner", lambda where, name: runner)
        return seeds

    def test_an_interrupted_experiment_goes_on(self, shoal: Command, trained: list[int], tmp_path: Path) -> None:
        (tmp_path / "stop").touch()
        assert shoal("reproduce", "tiny", "--quick", "--seeds", "2", "--out", "here")[0] == 130
        (tmp_path / "stop").unlink()
        code, out, err = shoal("reproduce", "--resume", "here", "--json")
        assert code == 0, err
        assert trained == [0, 1]
        assert json.loads(out)["size"] == "quick" and json.loads(out)["seeds"] == 2

    def test_more_seeds_are_added_to_a_finished_one(self, shoal: Command, trained: list[int]) -> None:
        assert shoal("reproduce", "tiny", "--quick", "--out", "here")[0] == 0
        code, out, err = shoal("reproduce", "--resume", "here", "--seeds", "3", "--json")
        assert code == 0, err
        assert trained == [0, 1, 2]
        assert json.loads(out)["rows"][0]["values"]["best"] == [0.0, 1.0, 2.0]

    def test_a_spec_that_has_changed_is_refused(self, shoal: Command, trained: list[int], tmp_path: Path) -> None:
        assert shoal("reproduce", "tiny", "--quick", "--out", "here")[0] == 0
        spec = tmp_path / "checkout" / "experiments" / "tiny" / "spec.toml"
        spec.write_text(spec.read_text().replace("steps = 10", "steps = 11"))
        code, _, err = shoal("reproduce", "--resume", "here")
        assert code == 2 and err == "shoal: cannot continue 'here': steps of tiny has changed since; start it again\n"

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["--resume", "here"], "'here' is not the folder of an experiment: it has no experiment.json"),
            (["lto-ackley", "--resume", "here"], "leave out 'lto-ackley'"),
            (["--resume", "here", "--quick"], "leave out --quick"),
            (["--resume", "here", "--out", "there"], "leave out --out"),
        ],
    )
    def test_refusals(self, shoal: Command, words: list[str], told: str) -> None:
        code, _, err = shoal("reproduce", *words)
        assert code == 2 and told in err and err.count("\n") == 1


def test_the_list_names_every_experiment(shoal: Command) -> None:
    code, out, _ = shoal("reproduce", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == NAMES
    assert "Samplers on 2-D Ackley" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lto-ackly"], "unknown experiment 'lto-ackly'. Did you mean 'lto-ackley'"),
        ([], "give one experiment (shoal reproduce --list shows them), not 0: nothing"),
        (["lto-ackley", "--seeds", "0"], "--seeds is 0: at least 1"),
        (["lto-ackley", "--seed", "1"], "unknown option --seed. Did you mean '--seeds'"),
        (["lto-ackley", "--env", "Pong-v5"], "--env chooses a part of the zoo; lto-ackley has none"),
        (["lto-ackley", "--problem", "CartPole"], "--problem chooses problems of an experiment; lto-ackley has none"),
        (
            ["hypertrick-vs-hyperband", "--problem", "Cartpole"],
            "hypertrick-vs-hyperband has no problem 'Cartpole'. Did you mean 'CartPole'",
        ),
        (["lto-ackley", "--missing"], "--missing chooses a part of the zoo; lto-ackley has none"),
        (
            ["zoo", "--quiet", "--env", "CartPole-v2"],
            "the zoo has no environment 'CartPole-v2'. Did you mean 'CartPole-v1'",
        ),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(shoal: Command, tmp_path: Path, words: list[str], told: str) -> None:
    code, out, err = shoal("reproduce", *words)
    assert code == 2 and out == ""
    assert err.startswith(f"shoal: {told}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_checkout_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "lib" / "python" / "site-packages" / "shoal" / "cli"
    monkeypatch.setattr(reproduce, "__file__", str(installed / "reproduce.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="needs a source checkout"):
        reproduce.experiments_folder()
    inside = checkout(tmp_path / "copy", TINY)
    (inside / "deep").mkdir()
    monkeypatch.chdir(inside / "deep")
    assert reproduce.experiments_folder() == inside


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (TINY.replace('source = "nowhere"', ""), "lacks 'source'"),
        (TINY.replace("[full]", "[fully]"), "lacks 'full'"),
        (f"what = 1\n{TINY}", "unknown entry 'what'"),
        ("title = ", "cannot read"),
    ],
)
def test_a_broken_spec_is_named(tmp_path: Path, spec: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        reproduce.read_spec(checkout(tmp_path, spec) / "tiny")


@pytest.mark.parametrize(("where", "told"), [("kitchen:x", "names no room"), ("optimize:x", "no runner 'x'")])
def test_an_unknown_runner_is_named(where: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        command.find_runner(where, "tiny")


def test_values_are_better_alike_or_worse() -> None:
    told = document()
    [a, b] = cells(told, told["tables"][0])
    assert [cell.verdict for cell in a] == ["better", "alike", "better"]
    assert [cell.verdict for cell in b] == ["worse", "", ""]
    assert a[0].ours.startswith("2 [") and a[0].published == "10"
    assert b[2].ours == "1 of 2" and b[1].published == ""
    assert differences(told) == ["T: 2 better, 1 alike, 1 worse", f"worse: b, loss: {b[0].ours}, published 2"]
    assert differences(document(size="quick")) == []


def test_only_what_is_judged_is_compared() -> None:
    told = document()
    told["tables"][0]["judged"] = ["speed"]
    [a, _] = cells(told, told["tables"][0])
    assert a[0].verdict == "" and a[0].published == "10" and a[1].verdict == "alike"


def test_goals_go_by_the_median_and_only_at_the_full_size() -> None:
    [goal] = goals(document())
    assert goal.ours == 6.0 and goal.limit == "at least 6.5" and goal.met is False
    limit = {"what": "slow", "row": {"way": "a"}, "column": "speed", "at_most": 6.5}
    assert goals(document(goals=[limit]))[0].met is True
    assert goals(document(size="quick"))[0].met is None


@pytest.mark.parametrize(("solved", "ours"), [("yyy", 19.0), ("yyn", 20.0), ("ynn", math.inf), ("nnn", math.inf)])
def test_a_seed_that_never_solved_counts_against_a_goal(solved: str, ours: float) -> None:
    minutes = [m for m, s in zip((18.0, 20.0, 19.0), solved, strict=True) if s == "y"]
    row = {
        "keys": {"way": "a"},
        "values": {"minutes": minutes, "solved": ["yes" if s == "y" else "no" for s in solved]},
    }
    limit = {"what": "soon", "row": {"way": "a"}, "column": "minutes", "at_most": 20}
    [goal] = goals(document(rows=[row], goals=[limit]))
    assert goal.ours == ours and goal.met is (ours <= 20)


def test_the_text_has_ours_beside_theirs_and_says_why() -> None:
    text = markdown(document())
    assert "| way | loss" in text and "| published |" in text
    assert "- because" in text and "- a note" in text and "| fast | at least 6.5 | 6" in text
    assert "not finite" in markdown(
        document(rows=[{"keys": {"way": "a"}, "values": {"loss": [float("nan")]}}], goals=[])
    )


def test_every_kind_of_picture_is_drawn(tmp_path: Path) -> None:
    line = {"name": "x", "runs": [{"steps": [0, 10], "values": [1.0, 0.1]}, {"steps": [0, 5], "values": [2.0, 0.0]}]}
    parts = {"collecting": [9.0, 5.0], "training": [1.0, 1.0], "broadcasting": [0.1, 0.2]}
    common = {"title": "A & B", "hint": "h", "x": "steps", "y": "MSE"}
    figures = [
        {"kind": "curves", "name": "c", "panels": [{"title": "p", "lines": [line]}], **common},
        {"kind": "curves", "name": "o", "panels": [{"title": "p", "lines": [line] * 5}], "overlay": True, **common},
        {"kind": "boxes", "name": "b", "rows": [{"name": "2", "values": [1.0, 2.0, 9.0]}], "column": "rho", **common},
        {
            "kind": "density",
            "name": "d",
            "rows": [{"name": "2", "values": [1.0, 2.0]}, {"name": "x", "values": [5.0]}],
            **common,
        },
        {"kind": "times", "name": "t", "drivers": [1, 2], "parts": parts, **common},
        {"kind": "shares", "name": "s", "panels": [{"title": "p", "episodes": [1, 2], "parts": parts}] * 2, **common},
        {
            "kind": "scaling",
            "name": "k",
            "drivers": [1, 2],
            "series": {"rho": [1.0, 1.9], "rho_star": [1.0, 1.8]},
            "cores": 2,
            "published_cores": 24,
            **common,
        },
    ]
    reference = reproduce.read_reference(ROOT / "lto-runtime" / "reference.csv")
    report = write_comparison(tmp_path, document(figures=figures, reference=reference))
    assert {path.stem for path in tmp_path.glob("*.png")} == {"b", "c", "d", "o", "t", "s", "k"}
    page = report.read_text()
    assert page.count("<svg") == 7 and "A &amp; B" in page
    assert "24 cores, published" in page and "2 cores, here" in page
