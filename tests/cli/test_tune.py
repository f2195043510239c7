"""`shoal tune`: a simulation's table, picture and JSON; refusals are one line and leave nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.cli.main import main

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


SMALL = ("tune", "simulate", "--nodes", "2", "--trials", "4", "--phases", "2", "--sigma", ".6", "--repeats", "3")


def test_the_table_is_printed_and_nothing_is_written(shoal: Command, tmp_path: Path) -> None:
    code, out, err = shoal(*SMALL)
    assert code == 0, err
    assert "# 4 trials of 2 phases on 2 nodes" in out and "sigma 0.6, constant metric" in out
    for method in ("hypertrick r=0.25", "hypertrick r=0.5", "sh", "hyperband", "asha", "pbt", "random"):
        assert f"| {method} " in out
    assert "1 of 7: hypertrick r=0.25" in err
    assert list(tmp_path.iterdir()) == []


def test_json_and_a_folder(shoal: Command, tmp_path: Path) -> None:
    words = ("--methods", "sh,hypertrick", "--eviction", ".5", "--metric", "walk", "--checkpoint", ".1")
    code, out, err = shoal(*SMALL, *words, "--out", "here", "--json", "--quiet")
    assert code == 0, err
    told = json.loads(out)
    assert [row["keys"]["method"] for row in told["rows"]] == ["sh", "hypertrick r=0.5"]
    assert told["settings"]["nodes"] == 2 and told["settings"]["metric"] == "walk" and told["out"] == "here"
    assert told["rows"][1]["values"]["switches"]["mean"] == 0
    assert "1 of 2" not in err and "report: here/report.html" in err
    made = {path.name for path in (tmp_path / "here").iterdir()}
    assert made == {"gantt.png", "table.md", "results.json", "report.html"}
    assert (tmp_path / "here" / "gantt.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "here" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tune"], "give one environment (shoal envs lists them), or a study with --resume, not 0: nothing"),
        (["tune", "simulat"], "unknown command 'tune simulat'. Did you mean 'simulate'"),
        (["tune", "simulate", "x"], "shoal tune simulate takes only options, not 'x'"),
        (["tune", "simulate", "--node", "3"], "unknown option --node. Did you mean '--nodes'"),
        (["tune", "simulate", "--nodes", "0"], "--nodes is '0': expected a whole number >= 1"),
        (["tune", "simulate", "--phases", "0"], "--phases is '0': expected a whole number >= 1"),
        (["tune", "simulate", "--sigma", "-1"], "--sigma is '-1': expected a number >= 0"),
        (["tune", "simulate", "--sigma", "nan"], "--sigma is 'nan': "),
        (["tune", "simulate", "--eviction", "1.5"], "eviction is 1.5: expected a number between 0 and 1"),
        (["tune", "simulate", "--eta", "1"], "--eta is '1': expected a whole number >= 2"),
        (["tune", "simulate", "--methods", "sha"], "--methods has 'sha': unknown method. Did you mean 'asha' or 'sh'"),
        (["tune", "simulate", "--metric", "x"], "--metric is 'x': expected one of constant, exchangeable, slow, walk"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(shoal: Command, tmp_path: Path, words: list[str], told: str) -> None:
    code, out, err = shoal(*words, *(["--out", "here"] if len(words) > 2 else []))
    assert code == 2 and out == ""
    assert err.startswith(f"shoal: {told}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to search: give at least one --space"),
        (
            ["--space", "lerning_rate=1..3"],
            "--space 'lerning_rate=1..3': unknown parameter 'lerning_rate'. Did you mean",
        ),
        (
            ["--space", "net.hiden=64"],
            "--space 'net.hiden=64': unknown parameter 'net.hiden'. Did you mean 'net.hidden'",
        ),
        (["--space", "gamma=uniform(1,0)"], "--space 'gamma=uniform(1,0)': the range is empty: 1 is not below 0"),
        (["--space", "gamma=log(-1,1)"], "--space 'gamma=log(-1,1)': log needs ends above 0, not -1"),
        (["--space", "gamma=.9,2"], "--space gamma=0.9,2: --gamma is '2': expected a number <= 1.0"),
        (["--space", "gamma=.9", "--space", "gamma=.8"], "--space 'gamma=.8': 'gamma' is given twice"),
        (["--space", "gamma"], "--space 'gamma': expected NAME=VALUES"),
        (["--space", "gamma=.9,.99", "--algo.gamma", ".5"], "--space gamma=0.9,0.99: gamma is also fixed, at '.5'"),
        (
            ["--space", "gamma=.9,.99", "--scheduler", "hyperbnd"],
            "unknown scheduler 'hyperbnd'. Did you mean 'hyperband'",
        ),
        (["--space", "gamma=.9,.99", "--scheduler", "os:x"], "cannot make the scheduler 'os:x': "),
        (["--space", "gamma=.9,.99", "--sampler", "tpa"], "unknown sampler 'tpa'. Did you mean 'tpe'?"),
        (
            ["--space", "gamma=.9,.99", "--sampler", "grid"],
            "--trials is 16: the grid of this space has 2 configurations",
        ),
        (["--space", "gamma=.9,.99", "--workers", "0"], "--workers is '0': expected a whole number >= 1"),
        (["--space", "gamma=.9,.99", "--trials", "0"], "--trials is '0': expected a whole number >= 1"),
        (["--space", "gamma=.9,.99", "--phases", "0"], "--phases is '0': expected a whole number >= 1"),
        (["--space", "gamma=.9,.99", "--phase", "30"], "--phase is '30': expected a number with its unit"),
        (["--space", "gamma=.9,.99", "--phase", "0s"], "--phase is '0s': expected a number above 0"),
        (["--space", "gamma=.9,.99", "--eviction", "1"], "--eviction is 1: expected a number between 0 and 1"),
        (["--space", "gamma=.9,.99", "--confirm", "best3"], "--confirm is 'best3': expected topKxN"),
        (
            ["--space", "gamma=.9,.99", "--confirm", "top1x5", "--test-seed", "0"],
            "seed 0 is for tuning and for testing",
        ),
        (["--space", "gamma=.9,.99", "--steps", "100"], "--steps follows from --phases and --phase"),
        (["--space", "gamma=.9,.99", "--eval-episodes", "3"], "--eval-episodes is not a setting of a study's trials"),
        (["--space", "gamma=.9,.99", "--triels", "3"], "unknown option --triels. Did you mean '--trials'"),
        (["--space", "gamma=.9,.99", "--storage", "nowhere"], "--storage is 'nowhere': expected a URL"),
        (
            ["--space", "gamma=.9,.99", "--storage", "sqlite:////no/where.db"],
            "cannot reach the storage 'sqlite:////no/wh",
        ),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_one_line(
    shoal: Command, tmp_path: Path, words: list[str], told: str
) -> None:
    code, out, err = shoal("tune", "CartPole-v1", "--algo", "a2c", "--backend", "jax", *words, "--study", "here")
    assert code == 2 and out == ""
    assert err.startswith(f"shoal: {told}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--resume", "none"], ["report", "none"], ["replay", "none"], ["dashboard", "none"]])
def test_a_study_that_is_not_there(shoal: Command, words: list[str]) -> None:
    code, _, err = shoal("tune", *words)
    assert code == 2 and err == "shoal: 'none' is not a study: it has no study.json\n"


def test_resuming_takes_nothing_else(shoal: Command) -> None:
    code, _, err = shoal("tune", "--resume", "x", "--trials", "3")
    assert code == 2 and "it does not take --trials" in err


def test_help_lists_every_setting(shoal: Command) -> None:
    code, out, _ = shoal("tune", "--help")
    assert code == 0
    for name in (
        "scheduler",
        "trials",
        "phases",
        "phase",
        "eviction",
        "sampler",
        "confirm",
        "workers",
        "test-seed",
        "lease",
    ):
        assert f"  --{name} " in out or f"  --{name}\n" in out
