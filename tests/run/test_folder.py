"""The run folder: made whole or not at all, found again by any path into it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.run.folder import RunFolder, describe_machine


def test_default_names_are_plain_and_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = [RunFolder.create(None, "ALE/Pong-v5", "ppo", "sync").path for _ in range(3)]
    made.append(RunFolder.create(None, "../../my.pkg:Env", "own.module:Algo", "sync").path)
    assert len(set(made)) == 4
    assert all(path.is_dir() and path.parent == Path("runs") for path in made)
    assert made[0].name.startswith("ALE_Pong-v5-ppo-sync-20")
    assert ":" not in made[3].name and not made[3].name.startswith(".")


def test_a_used_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="already holds files"):
        RunFolder.create(tmp_path, "e", "a", "t")
    run = RunFolder.create(tmp_path / "run", "e", "a", "t")
    run.write_config({})
    with pytest.raises(BadInput, match=r"already holds a run .*--resume"):
        RunFolder.create(tmp_path / "run", "e", "a", "t")
    with pytest.raises(BadInput, match="is a file"):
        RunFolder.create(tmp_path / "notes.txt", "e", "a", "t")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "run"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path, "e", "a", "t").path == tmp_path
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_made_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot write the run folder .*Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", "e", "a", "t")

    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(BadInput, match="Permission denied"):
        RunFolder.create(tmp_path / "a" / "b" / "c", "e", "a", "t")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_config_comes_back_with_the_machine(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", "e", "a", "t")
    run.write_config({"env": "CartPole-v1", "rate": np.float32(0.5), "out": Path("x"), "widths": (64, 64)})
    config = run.read_config()
    assert config["env"] == "CartPole-v1" and config["rate"] == 0.5 and config["widths"] == [64, 64]
    machine = config["machine"]
    assert {"python", "shoal", "jax", "numpy", "gymnasium"} <= machine["versions"].keys()
    assert machine["cpu"] and machine["cores"] >= 1 and machine["platform"]


@pytest.mark.parametrize(
    "content", [b"", b"[1, 2]", b'{"a": ', b"\xff\xfe", b"[" * 200_000, b'{"a":' * 200_000, b'{"\xff": 1}']
)
def test_a_hostile_config_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadInput, match="must hold a JSON object") as caught:
        RunFolder.open(tmp_path).read_config()
    assert "\n" not in str(caught.value)


def test_open_finds_the_run_from_any_path_into_it(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", "e", "a", "t")
    run.write_config({})
    run.checkpoints.mkdir()
    checkpoint = run.checkpoints / "step-5.safetensors"
    checkpoint.touch()
    assert RunFolder.open(run.path).checkpoint is None
    assert RunFolder.open(run.checkpoints).path == RunFolder.open(run.config_path).path == run.path
    assert RunFolder.open(checkpoint).path == run.path and RunFolder.open(checkpoint).checkpoint == checkpoint
    with pytest.raises(BadInput, match="there is no run"):
        RunFolder.open(tmp_path / "other")
    with pytest.raises(BadInput, match="not a run folder: it has no config"):
        RunFolder.open(tmp_path)


def test_the_machine_is_described_without_importing_what_it_names() -> None:
    assert describe_machine()["versions"]["python"]
    code = (
        "import sys; sys.path[:] = %r; from shoal.run.folder import describe_machine; describe_machine();"
        "print([m for m in ('jax', 'gymnasium', 'envpool', 'rich', 'tensorboardX') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code % sys.path], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_setting_that_meant_nothing_is_left_out_of_older_configs(tmp_path: Path) -> None:
    for algo, kept in (("dqn", {}), ("ppo", {"entropy": 0.0})):
        (tmp_path / "config.json").write_text(f'{{"algo": {{"name": "{algo}", "entropy": 0.0}}}}')
        assert RunFolder.open(tmp_path).read_config() == {"algo": {"name": algo, **kept}}
