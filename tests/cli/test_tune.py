"""`shoal tune simulate`: a table, a picture and JSON; refusals are one line and leave nothing."""

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
        (["tune"], "shoal tune needs a command: simulate"),
        (["tune", "simulat"], "unknown command 'tune simulat'. Did you mean 'simulate'"),
        (["tune", "simulate", "x"], "shoal tune simulate takes options alone, not 'x'"),
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
