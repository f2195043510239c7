"""`shoal optimize`: its flags, its one JSON object, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import main

KEYS = {
    "function", "sampler", "drivers", "runtime", "steps", "episodes", "evaluations", "setup_s", "wall_s", "steps_per_s",
    "first_mse_mean", "first_mse_var", "last_mse_mean", "last_mse_var", "best_mse", "best_msle", "last_msle_mean", "time",
}  # fmt: skip

OWN = """
def f(bias, mode, taps, temp):
    return (bias - temp / 100) ** 2 + (mode != "b") + 0.1 * (taps - 3) ** 2

def vector(bias, mode, taps, temp):
    import numpy
    return numpy.zeros(3) + bias

def word(bias, mode, taps, temp):
    return "low"

def fails(bias, mode, taps, temp):
    raise ZeroDivisionError("no such device")

def few(bias, mode):
    return bias

def more(bias, mode, taps, temp, humidity):
    return bias

def warm(bias, mode, taps, temp):
    return bias - temp / 50

def never(bias, mode, taps, temp):
    return bias + 1

number = 3
"""

PROBLEM = """
[knobs]
bias = [0.1, 5.0]
mode = { choice = ["a", "b", "c"] }
taps = { range = [1, 9] }
[conditions]
temp = [-40, 125]
"""

CONFIGS = {
    "reversed.toml": PROBLEM.replace("[0.1, 5.0]", "[5.0, 0.1]"),
    "infinite.toml": PROBLEM.replace("[-40, 125]", "[-40, inf]"),
    "nan.toml": PROBLEM.replace("[-40, 125]", "[nan, 1]"),
    "three.toml": PROBLEM.replace("[-40, 125]", "[1, 2, 3]"),
    "word.toml": PROBLEM.replace("[-40, 125]", '"warm"'),
    "single.toml": PROBLEM.replace("[-40, 125]", "3"),
    "renamed.toml": PROBLEM.replace("temp", "temperature"),
    "both.toml": PROBLEM.replace("temp =", "bias ="),
    "noknobs.toml": "[conditions]\ntemp = [0, 1]\n",
    "empty.toml": PROBLEM.replace('["a", "b", "c"]', "[]"),
    "twice.toml": PROBLEM.replace('["a", "b", "c"]', '["a", "a"]'),
    "badrange.toml": PROBLEM.replace("range = [1, 9]", "range = [1.5, 9]"),
    "zerostep.toml": PROBLEM.replace("range = [1, 9]", "range = [1, 9, 0]"),
    "table.toml": PROBLEM.replace("range = [1, 9]", "ranges = [1, 9]"),
    "entry.toml": 'knops = "x"\n' + PROBLEM,
    "kind.toml": 'kind = "fortran"\n' + PROBLEM,
    "noisy.toml": 'noisy = "yes"\n' + PROBLEM,
    "robust.toml": 'robust = "median"\n' + PROBLEM,
    "jax.toml": 'kind = "jax"\n' + PROBLEM,
    "list.toml": "knobs = [1, 2]\n",
    "warm.toml": 'subject_to = "own_law_functions:warm"\n' + PROBLEM.replace("[-40, 125]", "[25, 125]"),
    "never.toml": 'subject_to = ["own_law_functions:warm", "own_law_functions:never"]\n' + PROBLEM,
    "noname.toml": 'subject_to = "warm"\n' + PROBLEM,
    "nolimit.toml": 'subject_to = "own_law_functions:cold"\n' + PROBLEM,
    "fewlimit.toml": 'subject_to = "own_law_functions:few"\n' + PROBLEM,
    "limit.toml": "subject_to = 3\n" + PROBLEM,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_law_functions.py").write_text(OWN)
    Path("broken_law_functions.py").write_text("def f(:\n")
    Path("problem.toml").write_text(PROBLEM)
    for name, text in CONFIGS.items():
        Path(name).write_text(text)
    return tmp_path


def shoal(words: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["optimize", *words.split()])
    return int(ended.value.code or 0)


def last_line(text: str) -> dict[str, Any]:
    return dict(json.loads(text.strip().splitlines()[-1]))


def test_every_flag_and_the_json_keys(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = (
        "ackley --dims 3 --free 2 --shift 0.3 --algo reinforce --sampler latin-hypercube --drivers 3 --steps 40 --episodes 12"
        " --time-steps 2 --runtime fused --seed 4 --out run --quiet --json"
    )
    assert shoal(words) == 0
    captured = capfd.readouterr()
    got = last_line(captured.out)
    assert not KEYS - set(got)
    assert captured.err == "" and len(captured.out.splitlines()) == 1
    told = {name: got[name] for name in ("function", "sampler", "drivers", "runtime", "steps", "episodes", "seed")}
    assert told == {
        "function": "ackley", "sampler": "latin_hypercube", "drivers": 3, "runtime": "fused", "steps": 40, "episodes": 12,
        "seed": 4,
    }  # fmt: skip
    assert got["evaluations"] == 40 * 12 * 3 and got["time"] is None
    assert got["wall_s"] > 0 and got["setup_s"] > 0 and got["steps_per_s"] == pytest.approx(960 / got["wall_s"])
    assert got["best_mse"] <= got["last_mse_mean"] and got["first_mse_var"] >= 0 and got["last_msle_mean"] > 0
    assert (folder / "run" / "law.safetensors").exists()
    assert json.loads((folder / "run" / "summary.json").read_text())["best_mse"] == got["best_mse"]


def test_heterogeneous_has_three_drivers_unless_told(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shoal("sphere --sampler heterogeneous --steps 3 --out run --quiet --json") == 0
    assert last_line(capfd.readouterr().out)["drivers"] == 3


def test_an_own_function_with_a_config(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "own_law_functions:f --config problem.toml --runtime inline --drivers 2 --steps 3 --episodes 4 --algo ppo"
    words += " --out run --json"
    assert shoal(words) == 0
    captured = capfd.readouterr()
    got = last_line(captured.out)
    assert got["function"] == "f" and got["runtime"] == "inline" and got["evaluations"] == 3 * 4 * 3
    assert got["time"].keys() == {"collect", "learn", "broadcast"} and got["time"]["collect"] > 0
    assert "MSE over the conditions" in captured.err and "law: run/law.safetensors" in captured.err.replace(
        f"{folder}/", ""
    )


@pytest.mark.parametrize("quiet", ["", " --quiet"])
def test_pictures_are_left_however_quiet_it_is(folder: Path, capfd: pytest.CaptureFixture[str], quiet: str) -> None:
    words = (
        f"own_law_functions:f --config problem.toml --runtime inline --steps 20 --episodes 4 --out run --json{quiet}"
    )
    assert shoal(words) == 0
    got = last_line(capfd.readouterr().out)
    names = ["answers-bias.png", "answers-mode.png", "answers-taps.png", "contour.png", "curve.png"]
    assert sorted(path.name for path in (folder / "run").glob("*.png")) == names == sorted(got["pictures"])
    assert all((folder / "run" / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert got["evaluations_of"]["pictures"] == 21 * 21 + 3 * 32  # the optima of the report are known
    assert json.loads((folder / "run" / "summary.json").read_text()) == got
    assert got["kept"] == "best" and got["conditions"]["reporting"] == got["regret"]["n"] == 32


def test_keep_last(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shoal("sphere --steps 25 --episodes 12 --keep last --out run --json") == 0
    captured = capfd.readouterr()
    assert last_line(captured.out)["kept_step"] == 25
    assert "law: step 25, the last; regret" in captured.err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert shoal("--help") == 0
    text = capsys.readouterr().out
    flags = (
        "dims",
        "free",
        "shift",
        "algo",
        "sampler",
        "drivers",
        "steps",
        "episodes",
        "time-steps",
        "runtime",
        "seed",
        "out",
    )
    for flag in (*flags, "keep", "budget", "data", "resume", "quiet", "json", "config"):
        assert f"--{flag}" in text, flag


def test_few_evaluations(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = "sphere --budget 40"
    assert shoal(f"{words} --out run --json") == 0
    captured = capfd.readouterr()
    got = last_line(captured.out)
    assert got["algo"] == "surrogate" and got["evaluations"] + got["evaluations_of"]["probing"] <= 40
    assert "auto: surrogate, because the budget of 40" in captured.err and "law: regret" in captured.err
    assert 20 < len(Path("run/evaluations.jsonl").read_text().splitlines()) == got["evaluations"]
    assert got["regret"]["n"] == 32 and {"contour.png", "curve.png", "answers-x1.png"} <= set(got["pictures"])

    assert shoal("sphere --resume run --seed 1") == 2
    assert "seed is 1: a resumed run keeps its own, 0" in capfd.readouterr().err
    assert shoal("sphere --resume run --quiet --json") == 0
    assert last_line(capfd.readouterr().out)["budget"] == 40

    Path("old.csv").write_text("x1,x2,value\n1,1,2\n")
    assert shoal(f"{words} --algo surrogate --resume run --data old.csv") == 2
    assert "only one of them" in capfd.readouterr().err
    assert shoal("sphere --budget 20 --data old.csv --quiet --json --out warm") == 0
    assert last_line(capfd.readouterr().out)["warm"] == 1
    rows = "".join(f"{x},{y},{(x - 1) ** 2 + y * y}\n" for x in (-4, -2, 0, 2, 4) for y in (-4, -1, 1, 4))
    Path("old.csv").write_text(f"x,y,value\n{rows}")
    Path("data.py").write_text("def f(x, y):\n    return (x - 1) ** 2 + y * y\n")
    Path("data.toml").write_text('kind = "python"\n[knobs]\nx = [-5, 5]\n[conditions]\ny = [-5, 5]\n')
    monkeypatch.setattr("shoal.optimize.choice.BUDGET", 30)
    assert shoal("data:f --config data.toml --data old.csv --json --out own") == 0
    captured = capfd.readouterr()
    got = last_line(captured.out)
    assert (got["algo"], got["warm"], got["evaluations"]) == ("surrogate", 20, 30)
    assert "auto: surrogate with 30 new evaluations, because no other algorithm learns from earlier" in captured.err


def test_constraints(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shoal("own_law_functions:f --config warm.toml --budget 80 --out run --json") == 0
    captured = capfd.readouterr()
    got = last_line(captured.out)
    assert got["violations"] <= 1 and got["regret"]["n"] == 32 - got["violations"]
    assert f"constraints: violated at {got['violations']} of 32 held-out conditions" in captured.err
    row = json.loads(Path("run/evaluations.jsonl").read_text().splitlines()[0])
    assert row["warm"] == pytest.approx(row["bias"] - row["temp"] / 50)


F = "own_law_functions:f --config"
CASES = {
    "sphere --budget 0": ["--budget", "0"],
    "sphere --budget many": ["--budget", "'many'"],
    "sphere --budget 300 --steps 5": ["--budget and --steps"],
    "sphere --algo ppo --budget 300 --steps 5": ["--budget and --steps"],
    "sphere --algo surrogate --sampler grid": ["--sampler", "surrogate"],
    "sphere --algo surrogate --algo.learning-rate 1": ["algo.learning", "surrogate"],
    "sphere --algo ppo --data old.csv": ["ppo", "data"],
    "sphere --data old.csv --sampler grid": ["--sampler", "--data"],
    "sphere --data absent.csv": ["cannot read", "absent.csv"],
    "sphere --algo surrogate --data absent.csv": ["cannot read", "absent.csv"],
    "sphere --algo surrogate --resume absent": ["no run 'absent'"],
    "own_law_functions:fails --config problem.toml --algo surrogate": ["64 evaluations failed", "no such device"],
    "": ["one function"],
    "ackley sphere": ["one function", "2"],
    "ackly": ["'ackly'", "'ackley'"],
    "ackley --dims 0": ["--dims", "0"],
    "ackley --dims two": ["--dims", "'two'"],
    "ackley --free 3": ["--free 3", "--dims 2"],
    "ackley --free 0": ["--free 0"],
    "ackley --shift 2": ["--shift 2", "-1 to 1"],
    "ackley --shift nan": ["--shift nan"],
    "ackley --shift far": ["--shift", "'far'"],
    "branin --dims 3": ["--dims 3", "branin"],
    "ackley --algo dqn": ["'dqn'", "reinforce"],
    "ackley --sampler latin": ["'latin'", "latin_hypercube"],
    "ackley --keep first": ["'first'", "best, last"],
    "ackley --drivers 0": ["--drivers", "0"],
    "ackley --sampler heterogeneous --drivers 1": ["drivers is 1", "heterogeneous", "at least 2"],
    "ackley --steps 0": ["--steps", "0"],
    "ackley --steps 1e3": ["--steps", "'1e3'"],
    "ackley --episodes -2": ["--episodes", "-2"],
    "ackley --runtime inline --drivers 4 --episodes 30": ["episodes is 30", "4 drivers"],
    "ackley --runtime fuse": ["'fuse'", "'fused'"],
    "ackley --seed -1": ["--seed", "-1"],
    "ackley --time-steps 0": ["--time-steps", "0"],
    "ackley --sampelr grid": ["--sampelr", "'sampler'"],
    "ackley --algo.unroll 7": ["algo.unroll"],
    "ackley --algo.clip x": ["--algo.clip"],
    "ackley --config problem.toml": ["--config", "module:function"],
    "ackley --out own_law_functions.py": ["own_law_functions.py"],
    "own_law_functions:f": ["--config"],
    f"{F} nowhere.toml": ["'nowhere.toml'", "No such file"],
    f"{F} problem.toml --dims 3": ["--dims"],
    f"{F} problem.toml --runtime fused": ["JAX"],
    "own_law_functions:missing --config problem.toml": ["own_law_functions:missing"],
    "own_law_functions:number --config problem.toml": ["function"],
    "no_such_module:f --config problem.toml": ["no_such_module"],
    "broken_law_functions:f --config problem.toml": ["broken_law_functions", "SyntaxError"],
    "own_law_functions:few --config problem.toml": ["'taps'"],
    "own_law_functions:more --config problem.toml": ["'humidity'"],
    "own_law_functions:vector --config problem.toml": ["shape (3,)", "one number"],
    "own_law_functions:word --config problem.toml": ["'low'", "one number"],
    "own_law_functions:fails --config problem.toml": ["64 evaluations failed", "ZeroDivisionError: no such device"],
    f"{F} reversed.toml": ["bias=(5, 0.1)", "lower bound"],
    f"{F} infinite.toml": ["temp=(-40, inf)", "finite"],
    f"{F} nan.toml": ["temp=(nan, 1)", "finite"],
    f"{F} three.toml": ["temp=(1, 2, 3)", "two numbers"],
    f"{F} word.toml": ["temp='warm'", "two numbers"],
    f"{F} single.toml": ["temp=3", "two numbers"],
    f"{F} renamed.toml": ["'temperature'"],
    f"{F} both.toml": ["'bias'", "both a knob and a condition"],
    f"{F} noknobs.toml": ["knob"],
    f"{F} empty.toml": ["mode", "at least one"],
    f"{F} twice.toml": ["mode", "twice"],
    f"{F} badrange.toml": ["'taps'", "range"],
    f"{F} zerostep.toml": ["'taps'", "step"],
    f"{F} table.toml": ["'taps'", "choice"],
    f"{F} entry.toml": ["'knops'", "'knobs'"],
    f"{F} kind.toml": ["'fortran'", "numpy"],
    f"{F} noisy.toml": ["noisy", "true or false"],
    f"{F} robust.toml": ["'median'", "worst"],
    f"{F} jax.toml": ["'mode'", "JAX"],
    f"{F} list.toml": ["knobs", "table"],
    "own_law_functions:fails --config problem.toml --budget 300": ["64 evaluations failed", "no such device"],
    "sphere --budget 3 --data absent.csv": ["cannot read", "absent.csv"],
    f"{F} never.toml --budget 40000 --algo ppo": ["never <= 0", "none of 1,024 points"],
    f"{F} noname.toml": ["subject_to", "'warm'", "module:function"],
    f"{F} nolimit.toml": ["own_law_functions:cold"],
    f"{F} fewlimit.toml": ["few takes no parameter 'taps'"],
    f"{F} limit.toml": ["subject_to is 3", "module:function"],
}  # fmt: skip


def test_a_refusal_keeps_what_was_evaluated(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert shoal(f"{F} never.toml --budget 80 --out run") == 2
    [line] = capfd.readouterr().err.strip().splitlines()
    for expected in (
        "never <= 0",
        "none of 66 points",
        "lowest value was 1.",
        "66 evaluations are kept",
        "--resume run",
    ):
        assert expected in line, line
    assert len(Path("run/evaluations.jsonl").read_text().splitlines()) == 66


@pytest.mark.parametrize("words", CASES)
def test_refused_in_one_line(folder: Path, capfd: pytest.CaptureFixture[str], words: str) -> None:
    before = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
    assert shoal(words) == 2
    captured = capfd.readouterr()
    [line] = captured.err.strip().splitlines()
    assert captured.out == "" and "Traceback" not in line
    for expected in CASES[words]:
        assert expected in line, line
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before
