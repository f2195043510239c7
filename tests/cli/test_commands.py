"""Every command, as scripts and people use it."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.algos import ALGOS
from shoal.cli.main import main
from shoal.experiment import Settings
from shoal.nets.actor_critic import NetConfig
from shoal.runtimes import RUNTIMES
from shoal.studies.handle import RunHandle
from shoal.topologies import TOPOLOGIES

SOURCE = Path(__file__).parents[2] / "src"
TINY = [
    "--envs",
    "4",
    "--actors",
    "1",
    "--algo.unroll",
    "16",
    "--algo.batch-size",
    "32",
    "--net.hidden",
    "8",
    "--runtime",
    "inline",
    "--backend",
    "jax",
    "--steps",
    "640",
]
PROMISED = [
    "env",
    "algo",
    "topology",
    "runtime",
    "actors",
    "envs",
    "learners",
    "seed",
    "env_steps",
    "updates",
    "episodes",
    "setup_s",
    "wall_s",
    "steps_per_s",
    "return_mean",
    "solved_at_s",
    "lag_mean",
    "lag_max",
    "lags",
    "eval_mean",
    "eval_sd",
    "eval_iqm",
    "eval_sampled_mean",
    "eval_sampled_sd",
    "eval_episodes",
    "eval_faults",
    "eval_checks",
    "resumable",
    "run",
]

Command = Callable[..., tuple[int, str, str]]


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


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


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of CartPole, made by a process of its own."""
    folder = tmp_path_factory.mktemp("commands")
    words = ["-m", "shoal", "train", "CartPole-v1", *TINY, "--eval-episodes", "3", "--out", "run", "--json"]
    began = time.monotonic()
    done = python(*words, cwd=folder)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    (folder / "took").write_text(str(took))
    return folder / "run"


def last_line(text: str) -> dict[str, Any]:
    parsed = json.loads(text.splitlines()[-1])
    assert isinstance(parsed, dict)
    return parsed


def test_help_and_version_import_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom shoal.cli.main import main\n"
        "try:\n main(sys.argv[1:])\nexcept SystemExit as end:\n code = end.code\n"
        "heavy = sorted({'jax', 'numpy', 'gymnasium', 'envpool', 'matplotlib', 'optax', 'rich'} & set(sys.modules))\n"
        "print('HEAVY', heavy, code)"
    )
    for words in (["--help"], ["--version"], []):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = python("-c", code, *words, cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stdout.splitlines()[-1] == "HEAVY [] 0", done.stdout + done.stderr
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0, "of the processor's time"
    assert "shoal 0" in python("-m", "shoal", "--version", cwd=tmp_path).stdout


def test_help_names_every_command(shoal: Command) -> None:
    code, out, err = shoal("--help")
    assert code == 0 and err == ""
    for command in ["train", "eval", "play", "report", "envs", "doctor", "algos", "topologies", "runtimes"]:
        assert f"  {command} " in out
        code, text, _ = shoal(command, "--help")
        assert code == 0 and text.strip()


def test_train_help_lists_every_setting(shoal: Command) -> None:
    _, out, _ = shoal("train", "--help")
    words = set(out.split())
    configs = {"": Settings, "algo.": ALGOS["ppo"].Config, "topology.": TOPOLOGIES["sync"].Config, "net.": NetConfig}
    configs["runtime."] = RUNTIMES["threads"].Config
    flags = {f"--{p}{f.name.replace('_', '-')}" for p, config in configs.items() for f in dataclasses.fields(config)}
    own = {
        f"--{name}"
        for name in ["out", "resume", "from", "config", "seeds", "print-config", "quiet", "json", "no-report"]
    }
    assert (flags | own) - words == set()
    _, out, _ = shoal("train", "--help", "--algo", "a2c", "--runtime", "inline")
    assert "settings of algo a2c" in out and "settings of runtime inline" in out
    own = "shoal.algos.a2c:A2C"  # as somebody's own class is named
    assert f"settings of algo {own}" in shoal("train", "--help", "--algo", own)[1]


def test_what_json_promises(run_folder: Path) -> None:
    out = (run_folder.parent / "stdout").read_text()
    assert len(out.splitlines()) == 1
    summary = last_line(out)
    assert [key for key in PROMISED if key not in summary] == []
    assert summary["env"] == "CartPole-v1" and summary["env_steps"] == 640 and summary["updates"] == 10
    assert (summary["actors"], summary["envs"], summary["learners"], summary["seed"]) == (1, 4, 1, 0)
    assert (summary["algo"], summary["topology"], summary["runtime"]) == ("ppo", "sync", "inline")
    assert summary["solved_at_s"] is None and summary["eval_episodes"] == 3
    stored = json.loads((run_folder / "evaluation.json").read_text())
    for way, name in (("greedy", "eval"), ("sampled", "eval_sampled")):
        assert stored[way]["mean"] == summary[f"{name}_mean"] and len(stored[way]["returns"]) == 3
        assert stored[way]["greedy"] is (way == "greedy")
    took = float((run_folder.parent / "took").read_text())
    assert summary["setup_s"] > 0.2 and summary["wall_s"] > 0 and summary["setup_s"] + summary["wall_s"] < took
    assert summary["learnt_steps"] == summary["env_steps"] - summary["episodes"], "the step after an end only resets"
    assert summary["steps_per_s"] == pytest.approx(summary["learnt_steps"] / summary["wall_s"])
    assert Path(run_folder.parent / summary["run"]).samefile(run_folder)
    assert json.loads((run_folder / "summary.json").read_text()) == summary


def test_what_a_run_leaves(run_folder: Path) -> None:
    names = {path.name for path in run_folder.iterdir()}
    wanted = (
        "config.json metrics.jsonl checkpoints policy.safetensors summary.json evaluation.json report.html video.mp4"
    )
    assert set(wanted.split()) <= names and any(name.startswith("events") for name in names)
    err = (run_folder.parent / "stderr").read_text()
    assert (
        "trained 640 steps" in err
        and "evaluation: mean" in err
        and "with sampled actions" in err
        and "report.html" in err
    )
    assert not [line for line in err.splitlines() if "rror" in line or "Traceback" in line]


def test_quiet_says_nothing(shoal: Command) -> None:
    code, out, err = shoal("train", "CartPole-v1", *TINY, "--eval-episodes", "2", "--quiet")
    assert (code, out, err) == (0, "", "")
    code, out, err = shoal("train", "CartPole-v1", *TINY, "--eval-episodes", "0", "--no-report", "--quiet", "--json")
    assert code == 0 and err == "" and last_line(out)["eval_mean"] is None and len(out.splitlines()) == 1


def test_a_return_that_is_not_reached_is_no_failure(shoal: Command) -> None:
    short = ("--eval-episodes", "0", "--no-report", "--json")
    code, out, _ = shoal("train", "CartPole-v1", *TINY, *short, "--until-return", "10000")
    assert code == 0 and last_line(out)["solved_at_s"] is None


def test_a_return_that_is_reached_ends_the_run(shoal: Command) -> None:
    words = [word for word in TINY if word not in ("--steps", "640")]
    short = ("--eval-episodes", "0", "--no-report", "--json", "--steps", "100000")
    code, out, _ = shoal("train", "CartPole-v1", *words, *short, "--until-return", "1")
    summary = last_line(out)
    assert code == 0 and summary["env_steps"] < 10_000 and summary["return_mean"] >= 1
    assert 0 < summary["solved_at_s"] <= summary["wall_s"]


def test_the_printed_config_can_be_fed_back(shoal: Command, tmp_path: Path) -> None:
    words = (
        "CartPole-v1",
        *TINY,
        "--algo.clip",
        "0.17",
        "--seed",
        "7",
        "--until-return",
        "400",
        "--topology.overlap",
        "true",
    )
    code, printed, _ = shoal("train", *words, "--print-config")
    assert code == 0 and not (tmp_path / "runs").exists()
    config = json.loads(printed)
    assert config["algo"]["clip"] == 0.17 and config["seed"] == 7 and config["topology"]["overlap"] is True
    (tmp_path / "config.json").write_text(printed)
    assert shoal("train", "--config", "config.json", "--print-config")[1] == printed
    code, changed, _ = shoal("train", "--config", "config.json", "--seed", "8", "--print-config")
    assert json.loads(changed) == {**config, "seed": 8}


def test_a_config_file_in_toml(shoal: Command, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'env = "CartPole-v1"\nsteps = 999\n[algo]\nname = "a2c"\ngamma = 0.5\n[net]\nhidden = [4]\n'
    )
    config = json.loads(shoal("train", "--config", "c.toml", "--print-config")[1])
    assert config["algo"]["name"] == "a2c" and config["algo"]["gamma"] == 0.5
    assert config["steps"] == 999 and config["net"]["hidden"] == [4]


def test_several_seeds(shoal: Command, tmp_path: Path) -> None:
    short = ("--eval-episodes", "2", "--no-report", "--json", "--seeds", "2", "--seed", "5", "--out", "many")
    code, out, err = shoal("train", "CartPole-v1", *TINY, *short)
    together = last_line(out)
    assert code == 0 and [run["seed"] for run in together["seeds"]] == [5, 6]
    assert together["seeds"][0]["params_sha256"] != together["seeds"][1]["params_sha256"]
    assert "2 seeds: evaluation: mean" in err.splitlines()[-1] and "interval" in err.splitlines()[-1]
    assert {path.name for path in (tmp_path / "many").iterdir()} == {"seed-5", "seed-6"}


@pytest.mark.slow
def test_several_seeds_without_a_finished_episode(shoal: Command) -> None:
    words = ("Pendulum-v1", *TINY, "--eval-episodes", "0", "--no-report", "--json", "--seeds", "2")
    code, out, _ = shoal("train", *words)
    assert code == 0 and len(last_line(out)["seeds"]) == 2


def test_from_another_run(shoal: Command, run_folder: Path) -> None:
    short = ("--eval-episodes", "0", "--no-report", "--json", "--steps", "64", "--algo.learning-rate", "1e-12")
    words = [word for word in TINY if word not in ("--steps", "640")]
    started = shoal("train", "CartPole-v1", *words, *short, "--from", str(run_folder))
    fresh = shoal("train", "CartPole-v1", *words, *short)
    assert started[0] == fresh[0] == 0 and last_line(started[1])["env_steps"] == 64
    assert last_line(started[1])["params_sha256"] != last_line(fresh[1])["params_sha256"]
    code, _, err = shoal("train", "Pendulum-v1", *words, *short, "--from", str(run_folder), "--out", "other")
    assert code == 2 and "--from" in err and not Path("other").exists()


def test_resume_and_its_config(shoal: Command, run_folder: Path) -> None:
    code, printed, _ = shoal("train", "--resume", str(run_folder), "--print-config")
    assert code == 0 and json.loads(printed)["env"] == "CartPole-v1"


def test_eval(shoal: Command, run_folder: Path) -> None:
    code, out, err = shoal("eval", str(run_folder), "--episodes", "4", "--json")
    first = last_line(out)
    assert code == 0 and "over 4 greedy episodes" in err
    assert first["eval_episodes"] == 4 and first["greedy"] and first["run"] == str(run_folder)
    assert {"env", "eval_mean", "eval_sd", "eval_iqm"} <= set(first)
    assert last_line(shoal("eval", str(run_folder), "--episodes", "4", "--json")[1]) == first  # greedy, seeded
    code, out, err = shoal("eval", str(run_folder), "--episodes", "4", "--sample", "--seed", "3", "--json", "--quiet")
    assert code == 0 and err == "" and not last_line(out)["greedy"]


def test_play(shoal: Command, run_folder: Path, tmp_path: Path) -> None:
    code, out, err = shoal("play", str(run_folder), "--video", "clip.mp4", "--max-steps", "20")
    assert code == 0 and out == "" and "clip.mp4" in err
    assert (tmp_path / "clip.mp4").read_bytes()[4:8] == b"ftyp"


def test_report(shoal: Command, run_folder: Path) -> None:
    (run_folder / "report.html").unlink()
    code, out, err = shoal("report", str(run_folder), "--no-clip")
    assert code == 0 and out == "" and "report.html" in err
    assert "CartPole-v1" in (run_folder / "report.html").read_text()


def test_listings(shoal: Command) -> None:
    code, out, err = shoal("envs", "LunarLander*")
    assert code == 0 and err == "" and "LunarLander-v3" in out and "CartPole" not in out
    for command, registry in (("algos", ALGOS), ("topologies", TOPOLOGIES), ("runtimes", RUNTIMES)):
        code, out, err = shoal(command)
        assert code == 0 and err == ""
        assert [name for name in registry if f"{name}: {registry[name].about}" not in out] == []


def test_doctor(shoal: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = shoal("doctor", "CartPole-v1")
    assert code == 0 and "CartPole-v1" in out
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sick_env.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Sick(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        return (super().step(action)[0] * float('nan'), 0.0, False, False, {})\n"
    )
    code, out, _ = shoal("doctor", "sick_env:Sick")
    assert code == 1 and "error:" in out and "fix:" in out


@pytest.mark.parametrize(
    ("summary", "told"),
    [
        (
            {"env": "CartPole-v1", "ended": "paused", "env_steps": 5, "resumable": True},
            "shoal train --resume run continues it",
        ),
        ({"env": "ackley", "ended": "paused", "env_steps": 5, "resumable": False}, "only the program that began it"),
        ({"function": "ackley", "steps": 5}, "paused: run holds the law so far"),
    ],
)
def test_a_paused_run_is_told_how_it_goes_on(
    summary: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Paused:
        def ask(self) -> None:
            return None

        pause = stop = ask

        def wait(self) -> dict[str, Any]:
            return summary

    monkeypatch.setattr(RunHandle, "attach", lambda path: Paused())
    for command in ("pause", "stop"):
        with pytest.raises(SystemExit) as end:
            main([command, "run"])
        said = capsys.readouterr().err
        assert end.value.code == 0 and len(said.splitlines()) == 1
        assert told in said or command == "stop"
        assert ("continues it" in said) == (command == "pause" and summary.get("resumable", False))
