"""Checkpoints: what is saved loads, whatever is killed, cut, flipped or full."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.run import files
from shoal.run.checkpoints import Checkpoints

ARRAYS = {
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "flag": np.array(True),
    "empty": np.zeros((0, 3), np.uint32),
    "half": np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16),
    "key": np.array([1, 2**32 - 1], np.uint32),
    "scalar": np.float64(0.1),
    "image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "big_endian": np.arange(3, dtype=">i8"),
}


def content(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full(64, step, np.float32), "n": np.array(step, np.int64)}


def filled(folder: Path, steps: int = 3, keep: int = 3) -> tuple[Checkpoints, list[str]]:
    alerts: list[str] = []
    checkpoints = Checkpoints(folder, keep, alerts.append)
    for step in range(1, steps + 1):
        assert checkpoints.save(step, content(step), {"step": step}) is not None
    assert not alerts
    return checkpoints, alerts


def test_every_kind_of_array_comes_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(7, ARRAYS, {"net": {"widths": [64, 64]}, "loss": 0.5})
    loaded = Checkpoints(tmp_path).load()
    assert path == loaded.path and loaded.step == 7
    assert loaded.meta == {"net": {"widths": [64, 64]}, "loss": 0.5}
    assert loaded.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        back = loaded.arrays[name]
        assert back.shape == np.shape(array) and back.dtype == np.asarray(array).dtype.newbyteorder("=")
        assert back.tobytes() == np.ascontiguousarray(array).astype(back.dtype).tobytes()
        assert back.flags.writeable


def test_an_array_of_objects_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'x' is object"):
        Checkpoints(tmp_path / "c").save(1, {"x": np.array([{}])})
    assert not (tmp_path / "c").exists()


def test_the_last_k_and_the_best_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, score in enumerate([1.0, 9.0, float("nan"), 3.0, 2.0, None]):
        checkpoints.save(step, content(step), score=score)
    assert checkpoints.steps() == [5, 4, 1]
    assert checkpoints.load("best").step == 1
    assert checkpoints.load("last").step == checkpoints.load(5).step == 5
    assert checkpoints.load(tmp_path / "step-4.safetensors").step == 4
    assert sorted(p.suffix for p in tmp_path.glob("step-*")) == [".json"] * 3 + [".safetensors"] * 3


def test_best_is_the_newer_of_equals_and_found_without_its_pointer(tmp_path: Path) -> None:
    alerts: list[str] = []
    checkpoints = Checkpoints(tmp_path, 5, alerts.append)
    for step, score in enumerate([5.0, 7.0, 7.0, 6.0]):
        checkpoints.save(step, content(step), score=score)
    assert checkpoints.load("best").step == 2
    (tmp_path / "best.json").write_text("{}")
    assert checkpoints.load("best").step == 2
    assert len(alerts) == 1 and "best.json" in alerts[0]


def test_resumed_from_an_old_step_the_new_save_is_the_last(tmp_path: Path) -> None:
    checkpoints, _ = filled(tmp_path, 5)
    again = Checkpoints(tmp_path, 3)
    assert again.load(3).step == 3
    again.save(4, {"w": np.zeros(2)}, {"second": True})
    assert again.load().step == 4 and again.load().meta == {"second": True}
    assert checkpoints.steps() == [4, 5, 3]


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for value in range(4):
        checkpoints.save(1, content(value))
        assert checkpoints.load().arrays["n"] == value
    assert len(list(tmp_path.glob("step-1*.safetensors"))) == 1


def test_what_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no checkpoint to resume in"):
        Checkpoints(tmp_path / "none").load()
    checkpoints, _ = filled(tmp_path / "c", 2)
    with pytest.raises(BadInput, match=r"no checkpoint of step 9 .* there are: 1, 2"):
        checkpoints.load(9)
    with pytest.raises(BadInput, match="none of: last, best"):
        checkpoints.load("newest")
    with pytest.raises(BadInput, match="is not in"):
        checkpoints.load(tmp_path / "other" / "step-1.safetensors")
    with pytest.raises(BadInput, match="0 checkpoints to keep"):
        Checkpoints(tmp_path, keep=0)


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    child = subprocess.Popen(["sleep", "60"])
    try:
        living = tmp_path / f".step-2.safetensors.{child.pid}-0123abcd.tmp"
        earlier_life = tmp_path / f".step-2.safetensors.{os.getpid()}-0123abcd.tmp"
        living.touch()
        earlier_life.touch()
        Checkpoints(tmp_path).load("last")
        assert living.exists() and earlier_life.exists(), "a reader, perhaps on another machine, cannot tell who lives"
        filled(tmp_path, 2)
        assert living.exists() and not earlier_life.exists()
    finally:
        child.kill()
        child.wait()
    filled(tmp_path, 3)
    assert not living.exists()


@pytest.mark.parametrize("name", ["step-3.safetensors", "step-3.json"])
def test_every_flipped_bit_and_every_truncation_is_found(tmp_path: Path, name: str) -> None:
    checkpoints, alerts = filled(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(0, len(whole), 7)] + [whole + b"\0", whole[:-1]]
    # Every byte once, a random bit of it: header, padding, data, digest, punctuation.
    bits = random.Random(0)
    damaged += [whole[:i] + bytes([whole[i] ^ 1 << bits.randrange(8)]) + whole[i + 1 :] for i in range(len(whole))]
    for data in damaged:
        path.write_bytes(data)
        alerts.clear()
        loaded = checkpoints.load()
        assert loaded.step == 2 and loaded.arrays["n"] == 2
        assert len(alerts) == 1 and name in alerts[0]
    path.write_bytes(whole)
    alerts.clear()
    assert checkpoints.load().step == 3 and not alerts


def test_damage_in_all_is_bad_input_after_naming_each(tmp_path: Path) -> None:
    checkpoints, alerts = filled(tmp_path)
    (tmp_path / "step-1.safetensors").unlink()
    (tmp_path / "step-2.safetensors").write_bytes(b"")
    (tmp_path / "step-3.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(BadInput, match="no checkpoint to resume"):
        checkpoints.load()
    assert len(alerts) == 3 and all(any(f"step-{n}." in alert for alert in alerts) for n in (1, 2, 3))


def test_an_asked_for_step_that_is_damaged_falls_back_to_an_older_one(tmp_path: Path) -> None:
    checkpoints, alerts = filled(tmp_path, 3)
    (tmp_path / "step-2.json").write_bytes(b"{}")
    assert checkpoints.load(2).step == 1
    assert len(alerts) == 1 and "step-2.json" in alerts[0]


def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    checkpoints, alerts = filled(tmp_path / "c", 2)
    manifest = tmp_path / "c" / "step-2.json"
    text = manifest.read_text().replace("step-2.safetensors", "../../secret")
    start = text.index('"sha256": "') + len('"sha256": "')
    text = text[:start] + files.UNSEALED + text[start + 64 :]
    manifest.write_bytes(files.seal(text.encode()))
    assert checkpoints.load().step == 1
    assert len(alerts) == 1 and "file" in alerts[0]


# A disk that is full


def test_a_full_disk_costs_one_alert_and_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, alerts = filled(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write, room = os.write, 0

    def limited(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = data[: min(len(data), room)]
        room -= len(part)
        return write(descriptor, part)

    monkeypatch.setattr(os, "write", limited)
    size = (tmp_path / "step-3.safetensors").stat().st_size
    for attempt, space in enumerate([0, 1, 100, size - 1, size, size + 50]):  # within the data, within the manifest
        room = space
        assert checkpoints.save(10 + attempt, content(9)) is None
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert len(alerts) == 1 and "No space left" in alerts[0]
    assert checkpoints.load().step == 3
    room = 10**6
    assert checkpoints.save(20, content(20)) is not None
    room = 0
    assert checkpoints.save(21, content(21)) is None
    assert len(alerts) == 2  # again after a success
    assert checkpoints.load().step == 20


def test_a_really_full_disk(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tiny file system needs root")
    try:
        alerts: list[str] = []
        checkpoints = Checkpoints(mounted / "c", 3, alerts.append)
        assert checkpoints.save(1, {"w": np.ones(5_000, np.float32)}) is not None
        for step in (2, 3):
            assert checkpoints.save(step, {"w": np.ones(50_000, np.float32)}) is None
        assert len(alerts) == 1 and "No space left" in alerts[0]
        assert sorted(p.name for p in (mounted / "c").iterdir()) == ["step-1.json", "step-1.safetensors"]
        assert checkpoints.save(4, {"w": np.ones(5_000, np.float32)}) is not None
        assert checkpoints.load().step == 4
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


# Killed while saving

SAVER = """
import os, random, signal, sys, time
import numpy as np
from shoal.run.checkpoints import Checkpoints

folder, moments, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
assert "jax" not in sys.modules
chance = random.Random(seed)
alerts = []

def content(step):
    return {"w": np.full(3000, step, np.float32), "n": np.array(step)}

def saver(ready):
    checkpoints = Checkpoints(folder, keep=2)
    step = checkpoints.steps()[0]
    os.write(ready, b"x")
    while True:
        step += chance.randrange(2)  # sometimes the same step again
        checkpoints.save(step, content(step), {"step": step}, score=chance.random())

Checkpoints(folder, keep=2).save(1, content(1), {"step": 1}, score=0.0)
began = time.monotonic()
Checkpoints(folder, keep=2).save(1, content(1), {"step": 1}, score=0.0)
patience = min(0.1, 4 * (time.monotonic() - began))
newest, moved, leftovers = 1, 0, 0
for moment in range(moments):
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        chance.seed(seed * 1000 + moment)
        saver(into)
    os.read(out, 1)
    os.close(out), os.close(into)
    time.sleep(chance.random() * patience)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    leftovers += any(name.endswith(".tmp") for name in os.listdir(folder))
    checkpoints = Checkpoints(folder, keep=2, on_alert=alerts.append)
    for which in ("last", "best"):
        loaded = checkpoints.load(which)
        assert loaded.meta == {"step": loaded.step}
        assert loaded.arrays["n"] == loaded.step and (loaded.arrays["w"] == loaded.step).all()
    last = checkpoints.load().step
    assert last >= newest, (last, newest)
    moved += last > newest
    newest = last
    assert not alerts, alerts
    checkpoints.save(last, content(last), {"step": last}, score=0.0)
    assert not any(name.endswith(".tmp") for name in os.listdir(folder)), "the next writer sweeps"
print(moved, leftovers)
"""


def test_killed_at_200_moments_the_old_or_the_new_loads(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    moved = leftovers = 0
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path / str(seed)), "100", str(seed)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    answers = [run.communicate(timeout=60) for run in runs]  # of all, before the first may fail the test
    for run, (out, error) in zip(runs, answers, strict=True):
        assert run.returncode == 0, error
        moved += int(out.split()[0])
        leftovers += int(out.split()[1])
    assert moved >= 50  # the savers did save
    assert leftovers >= 10  # and were hit in the middle of it


@pytest.mark.parametrize("step", [3, 4])  # the same step again, and the next
def test_killed_after_any_of_its_system_calls_a_save_leaves_a_checkpoint(tmp_path: Path, step: int) -> None:
    """Every call that changes the disk, in turn, is the last one that happens."""

    class Killed(BaseException):
        pass

    def mortal(real: Callable[..., Any], budget: list[int]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not budget:
                raise Killed
            budget.pop()
            return real(*args, **kwargs)

        return call

    for calls in range(60):
        folder = tmp_path / str(calls)
        Checkpoints(folder, keep=1).save(3, content(3), {"value": 3}, score=1.0)
        budget = [0] * calls
        with pytest.MonkeyPatch.context() as patch:
            for name in ("write", "replace", "unlink", "fsync"):
                patch.setattr(os, name, mortal(getattr(os, name), budget))
            try:
                Checkpoints(folder, keep=1).save(step, content(4), {"value": 4}, score=2.0)
                done = True
            except Killed:
                done = False
        alerts: list[str] = []
        loaded = Checkpoints(folder, 1, alerts.append).load()
        assert loaded.arrays["n"] == loaded.meta["value"] in (3, 4) and not alerts
        if done:
            assert loaded.meta["value"] == 4 and loaded.step == step and calls > 8
            return
    pytest.fail("a save takes more than 60 calls")


WRITER = """
import sys
import numpy as np
from shoal.run.checkpoints import Checkpoints

writer, step = Checkpoints(sys.argv[1], keep=1), 0
while True:
    step += 1
    assert writer.save(step, {"n": np.array(step)}) is not None
"""


def test_a_reader_may_come_while_a_run_saves(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], env=environment)
    try:
        reader = Checkpoints(tmp_path)
        deadline = time.monotonic() + 20
        while not reader.steps() and time.monotonic() < deadline:
            time.sleep(0.01)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            Checkpoints(tmp_path)  # cleans; what the writer is at must survive it
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert reader.load().step > 1


def test_the_folder_itself_is_on_the_disk_before_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory's own entry lies in its parent, which is synced when it is made; its files' entries after each rename."""
    synced: list[tuple[Path, list[str]]] = []

    def note(folder: Path) -> None:
        synced.append((folder, sorted(os.listdir(folder))))

    monkeypatch.setattr(files, "sync_directory", note)
    Checkpoints(tmp_path / "run" / "checkpoints").save(1, {"a": np.zeros(1)})
    made, data, manifest = tmp_path / "run" / "checkpoints", "step-1.safetensors", "step-1.json"
    assert synced == [
        (tmp_path, ["run"]),
        (tmp_path / "run", ["checkpoints"]),
        (made, [data]),
        (made, [manifest, data]),
    ]
