"""`shoal compare`: the grid has what fits and says why the rest does not, goes on where it ended, and counts rightly."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import main
from shoal.core.config import build
from shoal.core.errors import BadInput, RunFailed
from shoal.process.commands import Finished, run_command
from shoal.studies import finished
from shoal.studies.grid import GridConfig, ways_of
from shoal.studies.measured import measure, ratio, rows_of, table_of

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


def leave(out: Path, *, seconds: float, seed: int, solved: bool = True, stopped: bool = False, **more: Any) -> None:
    """What a finished run leaves, as far as a comparison looks at it."""
    out.mkdir(parents=True)
    summary = {
        "seed": seed,
        "episodes": 100,
        "env_steps": 5000,
        "actors": 2,
        "updates": 4,
        "wall_s": seconds,
        "setup_s": 1.0,
        "steps_per_s": 5000 / seconds,
        "return_mean": 50.0,
        "eval_mean": None,
        "solved_at_s": seconds if solved else None,
        "lag_mean": 0.5,
        "lag_max": 1.0,
        "stopped": stopped,
        **more,
    }
    (out / "summary.json").write_text(json.dumps(summary))
    rows = [{"step": s, "time": 0.0, "time/lock": 0.002, "model/error": 1.0 / s} for s in (1, 2)]
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Trainings that take no time: 8 seconds over the number of actors, and a second more with each seed."""
    asked: list[dict[str, str]] = []

    def run(words: list[str]) -> Finished:
        assert words[0] == "train"
        options = dict(word.removeprefix("--").split("=") for word in words[2:] if "=" in word)
        options |= {"env": words[1], "out": words[words.index("--out") + 1]}
        asked.append(options)
        seed = int(options["seed"])
        steps = 5000 if options["topology"] == "sync" else 10_000
        leave(Path(options["out"]), seconds=8 / int(options["actors"]) + seed, seed=seed, env_steps=steps)
        return Finished(0, "", "")

    monkeypatch.setattr(finished, "run_command", run)
    return asked


GRID = ["compare", "CartPole-v1", "--topology", "sequential,sync", "--actors", "1,2", "--until-return", "60"]


def test_a_grid_has_every_combination_with_what_varies_in_its_name() -> None:
    words = {"algo": "ppo,a2c", "topology": "sequential,sync", "actors": "1,2"}
    config = build(GridConfig, {"env": "CartPole-v1", **words, "settings": {"algo.gamma": ("0.9", "0.99")}})
    ways, skipped = ways_of(config)
    assert len(ways) == 16 and not skipped
    assert ways[0].keys["way"] == "ppo sequential algo.gamma=0.9 x1" and ways[0].keys["actors"] == "1"
    assert ways[0].settings == {"algo": "ppo", "topology": "sequential", "actors": 1, "algo.gamma": "0.9"}
    assert len({way.folder(seed) for way in ways for seed in range(3)}) == 48


def test_one_combination_is_called_by_its_algorithm() -> None:
    [way], _ = ways_of(GridConfig(env="CartPole-v1", actors=(2,)))
    assert way.keys["way"] == "ppo" and way.keys["topology"] == "sync"


def test_what_does_not_fit_is_skipped_with_its_reason() -> None:
    config = build(GridConfig, {"env": "CartPole-v1", "algo": "ppo,a2c", "settings": {"algo.clip": ("0.2",)}})
    ways, [skipped] = ways_of(config)
    assert [way.keys["way"] for way in ways] == ["ppo"]
    assert skipped.way == "a2c" and "unknown setting --algo.clip" in skipped.reason


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--algo", "ppo,a2d"], "unknown algorithm 'a2d'. Did you mean 'a2c'"),
        (["--topology", "sink"], "unknown topology 'sink'. Did you mean 'sync'"),
        (["--topology", "sync", "--consistency", "lock"], "--consistency: sync has none to choose"),
        (["--actors", "1,0"], "--actors is '1,0': expected"),
        (["--set", "algo.gama=1"], "nothing to compare: unknown setting --algo.gama"),
        (["--set", "algo.gamma=0.9,2"], "--algo.gamma is '2': expected"),
        (["--set", "seed=1,2"], "'seed' has an option of its own: --seeds"),
        (["--set", "colour=red"], "unknown setting 'colour'"),
        (["--set", "algo.gamma="], "--set algo.gamma=: it has no value"),
        (["--seeds", "0"], "--seeds is '0': expected"),
        (["--out", "here"], "--out 'here' is a run folder"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(shoal: Command, tmp_path: Path, words: list[str], told: str) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.json").touch()
    code, out, err = shoal("compare", "CartPole-v1", *words)
    assert code == 2 and out == ""
    assert err.startswith(f"shoal: {told}") and err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["here"]


def test_from_the_command_to_table_pictures_and_report(
    shoal: Command, tmp_path: Path, trained: list[dict[str, str]]
) -> None:
    code, out, err = shoal(*GRID, "--seeds", "2", "--out", "here", "--json", "--set", "algo.unroll=8", "net.hidden=8,8")
    assert code == 0, err
    assert len(trained) == 8 and trained[0]["seed"] == "0" and trained[4]["seed"] == "1"
    assert (
        trained[0]["algo.unroll"] == "8" and trained[0]["net.hidden"] == "8,8" and trained[0]["until-return"] == "60.0"
    )
    made = {path.name for path in (tmp_path / "here").iterdir()}
    pictures = {"episodes", "s_per_episode", "seconds", "speedup", "efficiency", "steps_per_s", "lag", "lock_ms"}
    assert made == {f"{name}.png" for name in pictures | {"model_error"}} | {
        "results.json",
        "table.md",
        "table.csv",
        "runs.csv",
        "report.html",
        "runs",
    }
    assert (tmp_path / "here" / "speedup.png").read_bytes().startswith(PNG)
    page = (tmp_path / "here" / "report.html").read_text()
    assert page.count("<svg") == len(pictures) + 1 and "http" not in page.split("</style>")[1]
    rows = {row["keys"]["way"]: row["values"] for row in json.loads(out)["rows"]}
    assert rows["sync x1"]["speedup"] == {"mean": 1.0, "ci": None}
    assert rows["sync x2"]["seconds"] == [4.0, 5.0] and rows["sync x2"]["solved"] == ["yes", "yes"]
    assert rows["sync x2"]["speedup"]["mean"] == pytest.approx(8.5 / 4.5)
    assert rows["sequential x1"]["efficiency"]["mean"] == 0.5 and "efficiency" not in rows["sync x1"]
    assert rows["sync x2"]["lock_ms"] == [2.0, 2.0] and rows["sync x2"]["model_error"] == [0.5, 0.5]
    table = {line["way"]: line for line in csv.DictReader((tmp_path / "here" / "table.csv").read_text().splitlines())}
    assert float(table["sync x2"]["seconds"]) == 4.5 and table["sync x2"]["solved"] == "2"
    assert float(table["sync x2"]["seconds_low"]) < 4.5 < float(table["sync x2"]["seconds_high"])
    runs = list(csv.DictReader((tmp_path / "here" / "runs.csv").read_text().splitlines()))
    assert len(runs) == 8 and all(Path(run["run"]).is_dir() for run in runs)
    assert "| sync x2" in err and "a mean of 60" in err


def test_it_goes_on_where_it_was_interrupted(
    shoal: Command, tmp_path: Path, trained: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = finished.run_command

    def interrupted(words: list[str]) -> Finished:
        if len(trained) == 3:
            leave(Path(words[words.index("--out") + 1]), seconds=1, seed=0, stopped=True)
            raise KeyboardInterrupt
        return train(words)

    monkeypatch.setattr(finished, "run_command", interrupted)
    code, _, err = shoal(*GRID, "--seeds", "1")
    assert code == 130 and "stopped; the same command continues in runs/compare-CartPole-v1-" in err
    monkeypatch.setattr(finished, "run_command", train)
    code, out, _ = shoal(*GRID, "--seeds", "1")
    assert code == 0 and len(trained) == 4 and "| sync x2" in out
    assert len(list((tmp_path / "runs").iterdir())) == 1  # the same grid, the same folder
    shoal(*GRID, "--seeds", "2")
    assert len(trained) == 12  # another grid, another folder


@pytest.mark.slow
def test_the_finished_runs_of_a_smaller_grid_count(shoal: Command, trained: list[dict[str, str]]) -> None:
    assert shoal(*GRID, "--seeds", "1", "--out", "here")[0] == 0
    assert shoal(*GRID, "--seeds", "2", "--out", "here")[0] == 0
    assert [run["seed"] for run in trained] == ["0"] * 4 + ["1"] * 4


def test_the_runs_of_another_environment_do_not_count(shoal: Command, trained: list[dict[str, str]]) -> None:
    for env in ("CartPole-v1", "Acrobot-v1"):
        code, _, err = shoal("compare", env, "--topology", "sync", "--actors", "1", "--seeds", "1", "--out", "here")
        assert code == 0, err
    assert [run["env"] for run in trained] == ["CartPole-v1", "Acrobot-v1"]
    assert trained[0]["out"] != trained[1]["out"], "neither replaces the other"


def test_refused_and_failed_runs_are_named_and_the_others_go_on(
    shoal: Command, trained: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = finished.run_command

    def sometimes(words: list[str]) -> Finished:
        if "--topology=sequential" in words:
            return Finished(2, "", "a note\nshoal: it does not fit\n")
        if "--seed=1" in words:
            return Finished(1, "", "shoal: broken\n")
        return train(words)

    monkeypatch.setattr(finished, "run_command", sometimes)
    code, out, err = shoal(*GRID, "--seeds", "2", "--actors", "1", "--out", "here")
    assert code == 2 and "--actors is given twice" in err
    code, out, err = shoal(*GRID, "--seeds", "2", "--out", "here")
    assert code == 0 and len(trained) == 2
    assert "- skipped sequential x1: it does not fit" in out and "- failed sync x1, seed 1: broken" in out
    monkeypatch.setattr(finished, "run_command", lambda words: Finished(1, "", "shoal: broken\n"))
    code, out, err = shoal(*GRID, "--seeds", "1", "--out", "there")
    assert code == 1 and "no run finished: sequential x1, seed 0: broken" in err


def test_what_counts_until_the_goal_is_left_out_where_it_was_not_reached(tmp_path: Path) -> None:
    leave(tmp_path / "a", seconds=10, seed=0, solved=False)
    values = measure(tmp_path / "a", 60.0)
    assert values["solved"] == "no" and "episodes" not in values and "seconds" not in values
    assert values["s_per_episode"] == 0.1
    values = measure(tmp_path / "a", None)  # without a goal the budget is what counts
    assert "solved" not in values and values["episodes"] == 100 and values["minutes"] == pytest.approx(1 / 6)


def test_ratios_are_of_means_and_their_interval_knows_both_sides() -> None:
    told = ratio([4.0, 8.0, 12.0, 16.0, 20.0], [4.0, 5.0, 6.0, 7.0, 8.0])
    assert told["mean"] == 2.0 and told["ci"][0] < 2.0 < told["ci"][1]
    narrow = ratio([12.0] * 5, [4.0, 5.0, 6.0, 7.0, 8.0])["ci"]
    assert narrow[1] - narrow[0] < told["ci"][1] - told["ci"][0]
    assert ratio([10.0], [5.0]) == {"mean": 2.0, "ci": None}


def test_speed_up_is_against_the_fewest_actors_of_the_same_line() -> None:
    ways, _ = ways_of(GridConfig(env="CartPole-v1", algo=("ppo", "a2c"), topology=("sync",), actors=(2, 4)))
    seconds = {"ppo x2": 8.0, "ppo x4": 2.0, "a2c x2": 30.0, "a2c x4": 20.0}
    found: Mapping[str, Any] = {name: [{"seed": 0, "run": "r", "seconds": s}] for name, s in seconds.items()}
    rows = {row["keys"]["way"]: row["values"] for row in rows_of(ways, found)}
    assert [rows[name]["speedup"]["mean"] for name in seconds] == [1.0, 4.0, 1.0, 1.5]
    assert "minutes" not in table_of(rows_of(ways, found))["columns"]


def test_samples_are_compared_with_a_sync_run_of_the_same_settings() -> None:
    axes: Any = {"topology": ("sync", "sequential"), "settings": {"algo.gamma": (0.9, 0.99)}}
    ways, _ = ways_of(GridConfig(env="CartPole-v1", algo=("ppo",), actors=(1,), **axes))
    steps = {way.keys["way"]: 100.0 if "0.99" in way.keys["way"] else 10.0 for way in ways}
    found: Mapping[str, Any] = {name: [{"seed": 0, "run": "r", "env_steps": n}] for name, n in steps.items()}
    rows = [row["values"] for row in rows_of(ways, found) if row["keys"]["topology"] == "sequential"]
    assert len(rows) == 2 and all(row["efficiency"]["mean"] == 1.0 for row in rows)
    fewer = [way for way in ways if way.keys["topology"] != "sync" or "0.99" in way.keys["way"]]
    rows = [row["values"] for row in rows_of(fewer, found) if row["keys"]["topology"] == "sequential"]
    assert sum("efficiency" in row for row in rows) == 1


def test_a_command_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = run_command(["--version"])
    assert done.code == 0 and done.out.startswith("shoal ")
    done = run_command(["train", "Nowhere-v0", "--out", str(tmp_path / "run")])
    assert done.code == 2 and "Nowhere-v0" in done.reason and not done.reason.startswith("shoal:")
    assert Finished(-9, "", "").reason == "it ended with code -9 and no message"


def test_real_runs_side_by_side(shoal: Command) -> None:
    words = ["--backend", "jax", "--set", "envs=4", "algo.unroll=8", "net.hidden=8", "algo.batch_size=16"]
    code, out, err = shoal(
        "compare", "CartPole-v1", "--runtime", "inline,fused", "--actors", "1", "--steps", "320", "--seeds", "1", *words
    )
    assert code == 0, err
    assert (
        "| sync runtime=inline" in out and "| sequential runtime=fused" in out and "every run spent its budget" in out
    )


def test_an_error_of_the_whole_is_one_of_its_kind() -> None:
    with pytest.raises(BadInput, match="nothing to compare"):
        ways_of(GridConfig(env="Nowhere-v0"))
    assert RunFailed("x").exit_code == 1
