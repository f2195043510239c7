"""Metric sinks: the same names everywhere, and no sink can stop a run."""

from __future__ import annotations

import errno
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from shoal.core.errors import BadInput
from shoal.run import sinks
from shoal.run.folder import RunFolder
from shoal.run.sinks import MetricLines, open_sinks, read_metrics


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "run", "e", "a", "t")
    run.write_config({})
    return run


def events(path: Path) -> list[Any]:
    """A second reader of the record format: length, its checksum, data, its checksum."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        body = data[at + 12 : at + 12 + length]
        assert int.from_bytes(data[at + 12 + length : at + 16 + length], "little") == masked_crc32c(body)
        found.append(Event.FromString(body))
        at += 16 + length
    return found


def test_json_lines_and_tensorboard_say_the_same(folder: RunFolder) -> None:
    sink = open_sinks(["jsonl", "tensorboard"], folder, {})
    sink.write(64, {"episode/return": 1.5, "loss/policy": -0.25})
    sink.write(128, {"episode/return": 2.5, "loss/policy": float("nan")})
    sink.close()
    rows = read_metrics(folder.metrics_path)
    assert [row["step"] for row in rows] == [64, 128] and rows[0]["time"] <= rows[1]["time"]
    assert rows[0]["loss/policy"] == -0.25 and rows[1]["loss/policy"] is None
    (path,) = folder.path.glob("events.*")
    written = [(e.step, v.tag, v.simple_value) for e in events(path) for v in e.summary.value]
    assert written[:3] == [(64, "episode/return", 1.5), (64, "loss/policy", -0.25), (128, "episode/return", 2.5)]


@pytest.mark.parametrize(
    ("tail", "steps"),
    [
        (b"", [1, 2]),
        (b'{"step": 9, "ti', [1, 2]),
        (b'{"step": 9}', [1, 9, 2]),
        (b'{"step": 9}\n', [1, 9, 2]),
        (b"\xff", [1, 2]),
    ],
)
def test_a_cut_off_last_line_spoils_nothing(folder: RunFolder, tail: bytes, steps: list[int]) -> None:
    first = open_sinks(["jsonl"], folder, {})
    first.write(1, {})
    first.close()
    with folder.metrics_path.open("ab") as file:
        file.write(tail)
    assert len(read_metrics(folder.metrics_path)) == len(steps) - 1
    second = open_sinks(["jsonl"], folder, {})
    second.write(2, {})
    second.close()
    assert [row["step"] for row in read_metrics(folder.metrics_path)] == steps


def test_lines_are_read_as_they_come(folder: RunFolder) -> None:
    lines, path = MetricLines(folder.metrics_path), folder.metrics_path
    assert lines.new() == []
    path.write_bytes(b'{"step":1}\n{"step":2}\n{"st')
    assert [row["step"] for row in lines.new()] == [1, 2]
    assert lines.new() == []
    with path.open("ab") as file:
        file.write(b'ep":3}\n')
    assert [row["step"] for row in lines.new()] == [3]
    path.write_bytes(b'{"step":1}\n{"step":2}\n{"st')  # what a killed run leaves, and what its successor makes of it
    later = MetricLines(path, path.stat().st_size)
    path.write_bytes(b'{"step":1}\n{"step":2}\n')
    assert later.new() == []
    with path.open("ab") as file:
        file.write(b'{"step":3}\n')
    assert [row["step"] for row in later.new()] == [3]


def test_damage_in_the_middle_is_told(folder: RunFolder) -> None:
    folder.metrics_path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(BadInput, match="line 2 of"):
        read_metrics(folder.metrics_path)
    with pytest.raises(BadInput, match=r"cannot read metrics .*No such file"):
        read_metrics(folder.path / "none.jsonl")


def test_a_full_disk_costs_rows_and_one_alert(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    alerts: list[str] = []
    sink = open_sinks(["jsonl"], folder, {}, alerts.append)
    sink.write(1, {"a": 1.0})
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        sink.write(2, {"a": 2.0})
        sink.write(3, {"a": 3.0})
    assert len(alerts) == 1 and "No space left" in alerts[0]
    sink.write(4, {"a": 4.0})
    sink.close()
    assert [row["step"] for row in read_metrics(folder.metrics_path)] == [1, 4]


def test_tensorboard_starts_a_new_file_after_a_failure(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    alerts: list[str] = []
    sink = sinks.TensorBoard(folder, {}, alerts.append)
    sink.write(1, {"a": 1.0})

    def full(event: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sink._writer, "write_event", full)
    sink.write(2, {"a": 2.0})
    sink.write(3, {"a": 3.0})
    sink.close()
    assert len(alerts) == 1
    found = [v.simple_value for path in folder.path.glob("events.*") for e in events(path) for v in e.summary.value]
    assert 3.0 in found and 2.0 not in found


def test_a_sink_that_raises_is_reported_once_and_left_out() -> None:
    class Broken:
        def write(self, step: int, values: Mapping[str, float]) -> None:
            raise ConnectionError("network is gone")

        def close(self) -> None:
            raise AssertionError("it was left out")

    kept: list[int] = []

    class Kept:
        def write(self, step: int, values: Mapping[str, float]) -> None:
            kept.append(step)

        def close(self) -> None:
            raise RuntimeError("late")

    alerts: list[str] = []
    tee = sinks.Tee([Broken(), Kept()], alerts.append)
    tee.write(1, {})
    tee.write(2, {})
    assert kept == [1, 2]
    assert len(alerts) == 1 and "Broken" in alerts[0] and "network is gone" in alerts[0]
    tee.close()
    assert len(alerts) == 2 and "Kept" in alerts[1]


def test_unknown_and_missing_sinks_are_one_line(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"unknown sink 'tensorbord'.*'tensorboard'"):
        open_sinks(["tensorbord"], folder, {})
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(BadInput, match=rf"pip install 'shoal\[{name}\]'"):
            open_sinks([name], folder, {})


def test_a_sink_that_cannot_start_is_one_line_and_closes_the_others(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**settings: Any) -> None:
        raise ValueError("no such project\nand a long story")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(BadInput, match=r"^sink 'wandb' cannot start: ValueError: no such project$"):
        open_sinks(["jsonl", "wandb"], folder, {})
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_wandb_is_offline_unless_told(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    logged: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            logged.append((step, values))

        def finish(self) -> None:
            logged.append("finished")

    def init(**settings: Any) -> Run:
        started.append(settings)
        return Run()

    fake = types.SimpleNamespace(init=init)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    sink = open_sinks(["wandb"], folder, {"env": "E"})
    sink.write(3, {"episode/return": 1.0})
    sink.close()
    assert started[0]["mode"] == "offline" and started[0]["config"] == {"env": "E"}
    assert logged == [(3, {"episode/return": 1.0}), "finished"]
    monkeypatch.setenv("WANDB_MODE", "online")
    open_sinks(["wandb"], folder, {}).close()
    assert started[1]["mode"] == "online"


def test_mlflow_gets_params_and_metrics(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            calls.append(tracking_uri)

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, number: str, run_name: str) -> Any:
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"run-{number}-{run_name}"))

        def log_param(self, run: str, name: str, value: str) -> None:
            calls.append((run, name, value))

        def log_batch(self, run: str, metrics: list[Any]) -> None:
            calls.append([(m[0], m[1], m[3]) for m in metrics])

        def set_terminated(self, run: str) -> None:
            calls.append("ended")

    entities = types.SimpleNamespace(Metric=lambda *parts: parts)
    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=Client, entities=entities))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    sink = open_sinks(["mlflow"], folder, {"algo": {"gamma": 0.9}})
    sink.write(5, {"loss/value": 2.0})
    sink.close()
    assert calls[0].startswith("file:") and calls[0].endswith("/run/mlruns")
    assert calls[1] == ("run-7-run", "algo.gamma", "0.9")
    assert calls[2:] == [[("loss/value", 2.0, 5)], "ended"]
