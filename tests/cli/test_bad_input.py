"""What cannot be met is refused: exit code 2, one line that names the value and the rule, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.main import main

SOURCE = Path(__file__).parents[2] / "src"

ENVS = """
import gymnasium, numpy as np

class Good(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (WIDTH,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}
    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t >= 10, False, {}

class OddSpace(Good):
    observation_space = gymnasium.spaces.Text(5)

class Unbounded(Good):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

class NoReset(Good):
    def reset(self, *, seed=None, options=None):
        raise ValueError("no level file")

class NoConstruction(Good):
    def __init__(self):
        raise OSError("no simulator licence")

class OddAnswer(Good):
    def reset(self, *, seed=None, options=None):
        return 3
"""

CONFIGS = {
    "number.json": '{"algo": 5}',
    "list.json": '{"algo": {"name": ["x"]}}',
    "net.json": '{"net": 7}',
    "deep.json": "[" * 100_000,
    "deeper.json": '{"algo": ' * 100_000,
    "array.json": "[1]",
    "huge.json": '{"steps": 1e400}',
    "bytes.json": b"\xff\xfe\x00",
    "path.json": '{"runtime": "../../x"}',
    "nested.json": '{"algo": {"name": "ppo", "clip": {"a": 1}}}',
    "nan.json": '{"checkpoint_every": "nan"}',
    "unknown.json": '{"stepps": 3}',
    "twice.json": '{"algo": {"name": "ppo", "__class__": "x"}}',
    "types.toml": 'steps = "many"',
    "broken.toml": "steps = = 3",
    "widths.toml": "[net]\nhidden = [-5]",
    "config.yaml": "steps: 3",
}

CASES = {
    "LunarLandr-v3": ["'LunarLandr-v3'", "not known", "LunarLander-v3"],
    "ALE/Pongg-v5": ["'ALE/Pongg-v5'", "ALE/Pong-v5"],
    "own_envs:OddSpace": ["own_envs:OddSpace", "Text", "not supported"],
    "own_envs:NoReset": ["own_envs:NoReset", "ValueError: no level file"],
    "own_envs:NoConstruction": ["own_envs:NoConstruction", "OSError: no simulator licence"],
    "own_envs:OddAnswer": ["own_envs:OddAnswer", "(observation, info)"],
    "own_envs:Missing": ["own_envs:Missing", "no attribute"],
    "no_such_module:Env": ["no_such_module"],
    "": ["no environment"],
    "CartPole-v1 Acrobot-v1": ["one environment", "2"],
    "CartPole-v1 --steps -5": ["--steps", "-5", ">= 1"],
    "CartPole-v1 --steps 0": ["--steps", "0", ">= 1"],
    "CartPole-v1 --steps many": ["--steps", "many", "whole number"],
    "CartPole-v1 --steps": ["--steps needs a value"],
    "CartPole-v1 --actors 0": ["--actors", "0"],
    "CartPole-v1 --actors 1.5": ["--actors", "1.5"],
    "CartPole-v1 --envs -1": ["--envs", "-1"],
    "CartPole-v1 --envs 1000000000": ["--envs 1000000000", "memory"],
    "CartPole-v1 --seed -1": ["--seed", "-1"],
    "CartPole-v1 --seeds 0": ["--seeds", "0"],
    "CartPole-v1 --seeds 2 --seed x": ["--seed", "'x'"],
    "CartPole-v1 --eval-episodes -1": ["--eval-episodes", "-1"],
    "CartPole-v1 --learners 2": ["--learners", "2", "one learner"],
    "CartPole-v1 --learners 0": ["--learners", "0"],
    "CartPole-v1 --until-return high": ["--until-return", "high"],
    "CartPole-v1 --until-eval high": ["--until-eval", "high"],
    "CartPole-v1 --until-eval 9 --until-eval-by luck": ["--until-eval-by", "luck", "greedy, sampled"],
    "CartPole-v1 --until-return nan": ["--until-return", "nan", "finite"],
    "CartPole-v1 --checkpoint-every -1": ["--checkpoint-every", "-1"],
    "CartPole-v1 --stepps 5": ["--stepps", "'--steps'"],
    "CartPole-v1 --algo.lerning-rate 5": ["--algo.lerning-rate", "'--algo.learning-rate'"],
    "CartPole-v1 --algo.learning-rate fast": ["--algo.learning-rate", "fast", "number"],
    "CartPole-v1 --algo.learning-rate -1": ["--algo.learning-rate", "-1"],
    "CartPole-v1 --algo.gamma 2": ["--algo.gamma", "2"],
    "CartPole-v1 --net.activation sine": ["--net.activation", "sine", "tanh"],
    "CartPole-v1 --net.hidden -4": ["--net.hidden", "-4"],
    "CartPole-v1 --topology.overlapp true": ["--topology.overlapp", "'--topology.overlap'"],
    "CartPole-v1 --runtime threads --runtime.step-timeout 0": ["--runtime.step-timeout", "0"],
    "CartPole-v1 --foo.bar 3": ["--foo.bar"],
    "CartPole-v1 --algo pppo": ["'pppo'", "'ppo'"],
    "CartPole-v1 --algo os:system": ["os:system"],
    "CartPole-v1 --algo nowhere:Algo": ["nowhere:Algo"],
    "CartPole-v1 --net nope": ["'nope'", "actor_critic"],
    "CartPole-v1 --topology synk": ["'synk'", "'sync'"],
    "CartPole-v1 --runtime thread": ["'thread'", "'threads'"],
    "CartPole-v1 --backend foo": ["--backend", "foo", "gymnasium"],
    "CartPole-v1 --sinks jsonl,nope": ["'nope'", "tensorboard"],
    "CartPole-v1 --topology sync --runtime fused": ["'sync'", "'fused'"],
    "CartPole-v1 --runtime fused --actors 2": ["--actors is 2", "fused"],
    "CartPole-v1 --algo dqn --runtime fused --algo.replay prioritized": ["'prioritized'", "fused", "threads"],
    "CartPole-v1 --algo td3": ["CartPole-v1", "Discrete", "dqn or ppo"],
    "Pendulum-v1 --algo sac --net actor_critic": ["ActorCritic", "critics"],
    "Pendulum-v1 --algo sac --algo.updates-per-step 1e-5": ["--algo.updates-per-step is 1e-05", "0.001"],
    "Pendulum-v1 --algo td3 --steps 400": ["--algo.warmup is 500", "--steps 400"],
    "Pendulum-v1 --algo td3 --steps 400 --algo.warmup 10 --algo.batch-size 512": [
        "--algo.batch-size is 512",
        "--steps 400",
    ],
    "own_envs:Unbounded --algo td3": ["own_envs:Unbounded", "no finite bounds", "--algo.action-scale"],
    "CartPole-v1 --algo dqn --algo.capacity 1000000000000": ["--algo.capacity is 1000000000000", "GiB are free"],
    "CartPole-v1 --algo dqn --algo.capacity 100": ["--algo.batch-size is 128", "--algo.capacity 100"],
    "CartPole-v1 --algo dqn --algo.n-step 9": ["--algo.n-step is 9", "--algo.unroll 8"],
    "CartPole-v1 --algo dqn --net.cell lstm --algo.sequence 9": ["--algo.sequence is 9", "--algo.unroll 8"],
    "CartPole-v1 --algo dqn --net.cell gru --algo.burn-in 8": ["--algo.burn-in is 8", "at most 7"],
    "CartPole-v1 --algo dqn --algo.burn-in 2": ["--algo.burn-in is 2", "--net.cell lstm"],
    "CartPole-v1 --algo dyna_q --net.cell lstm": ["--net.cell", "dyna_q", "use dqn"],
    "CartPole-v1 --algo dqn --algo.entropy 0.1": ["unknown setting --algo.entropy"],
    "CartPole-v1 --algo dqn --algo.replay best": ["--algo.replay is 'best'", "prioritized"],
    "CartPole-v1 --algo dqn --net actor_critic": ["ActorCritic", "q_network"],
    "CartPole-v1 --algo ppo --net q_network": ["QNetwork", "actor_critic"],
    "Pendulum-v1 --algo dqn": ["Pendulum-v1", "Box", "Discrete", "td3"],
    "LunarLander-v3 --runtime fused": ["LunarLander-v3", "JAX"],
    "own_envs:Good --runtime fused": ["own_envs:Good"],
    "CartPole-v1 --out used": ["'used'", "a run", "--resume"],
    "CartPole-v1 --out full": ["'full'", "already holds files"],
    "CartPole-v1 --out file": ["'file'", "is a file"],
    "CartPole-v1 --out file/run": ["'file/run'"],
    "CartPole-v1 --out /proc/run": ["'/proc/run'", "cannot write"],
    "--resume nowhere": ["'nowhere'", "no run"],
    "--resume full": ["'full'", "not a run folder"],
    "--resume file": ["'file'", "not a run folder"],
    "--resume used": ["'used", "no checkpoint to resume"],
    "--resume used --out other": ["--out", "--resume"],
    "--resume used --seeds 2": ["--seeds", "--resume"],
    "CartPole-v1 --from nowhere": ["'nowhere'"],
    "CartPole-v1 --config nowhere.toml": ["'nowhere.toml'", "No such file"],
    "CartPole-v1 --quiet=yes": ["--quiet", "'yes'"],
    "CartPole-v1 --seed 1 --seed 2": ["--seed", "twice"],
    "CartPole-v1 -x": ["'-x'"],
    **{f"CartPole-v1 --config {name}": [] for name in CONFIGS},
}

OTHERS = {
    "eval": ["one run folder"],
    "eval a b": ["one run folder", "2"],
    "eval nowhere": ["'nowhere'"],
    "eval full": ["'full'"],
    "eval used": ["no checkpoint"],
    "eval nowhere --episodes 0": ["--episodes", "0"],
    "eval nowhere --episodes few": ["--episodes", "few"],
    "eval nowhere --epsodes 3": ["--epsodes", "'--episodes'"],
    "play nowhere": ["'nowhere'"],
    "play nowhere --video clip.gif": ["clip.gif", ".mp4"],
    "play nowhere --video nowhere/clip.mp4": ["no folder"],
    "report nowhere": ["'nowhere'"],
    "envs zzzzzz": ["'zzzzzz'"],
    "envs a b": ["2"],
    "doctor": ["one environment"],
    "algos x": ["'x'"],
    "trian CartPole-v1": ["'trian'", "'train'"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with an environment of one's own, hostile configs, and folders that are no good."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_envs", raising=False)
    (tmp_path / "own_envs.py").write_text(ENVS.replace("WIDTH", "3"))
    for name, text in CONFIGS.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "config.json").write_text('{"env": "CartPole-v1", "algo": {"name": "ppo"}}')
    return tmp_path


def listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "__pycache__" not in str(path)}


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command is refused."""
    before = children()
    with pytest.raises(SystemExit) as error:
        main(words)
    out, err = capfd.readouterr()
    assert error.value.code == 2, err
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("shoal: "), (out, err)
    assert children() == before
    return err


@pytest.mark.parametrize(("words", "says"), CASES.items())
def test_train(words: str, says: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = listing(folder)
    line = refused(["train", *words.split()], capfd)
    assert [part for part in says if part not in line] == [], line
    assert listing(folder) == before


@pytest.mark.parametrize(("words", "says"), OTHERS.items())
def test_other_commands(words: str, says: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = listing(folder)
    line = refused(words.split(), capfd)
    assert [part for part in says if part not in line] == [], line
    assert listing(folder) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "locked").mkdir(mode=0o500)
    assert "Permission denied" in refused(["train", "CartPole-v1", "--out", "locked/run"], capfd)


def test_an_empty_folder_that_was_given_stays(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "mine").mkdir()
    refused(["train", "CartPole-v1", "--out", "mine", "--topology", "sync", "--runtime", "fused"], capfd)
    assert (folder / "mine").is_dir() and not any((folder / "mine").iterdir())


def test_resume_of_an_environment_whose_spaces_changed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny = "--envs 2 --actors 1 --algo.unroll 8 --algo.batch-size 16 --net.hidden 8 --runtime inline --steps 64"
    words = f"train own_envs:Good {tiny} --eval-episodes 0 --no-report --out run".split()
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 0
    capfd.readouterr()
    kept = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    # Longer, too: Python takes byte code for current if the file has the same length and was written in the same second.
    (folder / "own_envs.py").write_text(ENVS.replace("WIDTH", "5") + "# Observations are wider than before.\n")
    for command in (["train", "--resume", "run", "--steps", "128"], ["eval", "run"]):
        sys.modules.pop("own_envs", None)
        line = refused(command, capfd)
        assert "own_envs:Good" in line and "obs space changed" in line and "3" in line and "5" in line
    assert {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()} == kept


def test_as_a_process(folder: Path) -> None:
    """Once from outside: one line, no traceback, no process."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "train", "own_envs:NoReset", "--runtime", "processes"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "no level file" in done.stderr
