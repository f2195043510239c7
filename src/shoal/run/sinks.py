"""Metric sinks: `metrics.jsonl` and TensorBoard by default; W&B and MLflow if they are installed.

All write the same names. A sink that fails is reported once and training continues: a full disk or a lost network costs
metrics, never a run.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from shoal.core.errors import BadInput, nearest
from shoal.run.folder import RunFolder

Alert = Callable[[str], None]


class Sink(Protocol):
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` at `step` environment steps."""

    def close(self) -> None: ...


class JsonLines:
    """One JSON object per line with `step` and `time` (seconds since 1970). Appends; repairs a line that was cut off."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], on_alert: Alert) -> None:
        self._path = folder.metrics_path
        self._alert = on_alert
        self._failing = False
        _mend(self._path)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._end = os.fstat(self._file).st_size

    def write(self, step: int, values: Mapping[str, float]) -> None:
        row = {"step": step, "time": round(time.time(), 3), **{name: float(value) for name, value in values.items()}}
        line = msgspec.json.encode(row) + b"\n"
        try:
            rest = line
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.ftruncate(self._file, self._end)  # half a line would spoil the next
            if not self._failing:
                self._alert(f"cannot write {self._path}: {error.strerror}; training continues without these metrics")
            self._failing = True
            return
        self._failing = False
        self._end += len(line)

    def close(self) -> None:
        os.close(self._file)


class TensorBoard:
    """Event files in the run folder, written in the caller's own thread.

    tensorboardX's SummaryWriter hands events to a thread through a bounded queue: if a full disk killed that thread,
    training would wait for it without end. Its record writer is therefore used directly.
    """

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], on_alert: Alert) -> None:
        self._events_writer: Any = importlib.import_module("tensorboardX.event_file_writer").EventsWriter
        self._event: Any = importlib.import_module("tensorboardX.proto.event_pb2").Event
        self._summary: Any = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        self._prefix = str(folder.path / "events")
        self._writer: Any = None
        self._files = 0
        self._flushed = 0.0
        self._alert = on_alert
        self._failing = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        tags = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=tags))
        try:
            if self._writer is None:
                self._writer = self._events_writer(self._prefix, f".{os.getpid()}.{self._files}")
                self._files += 1
            self._writer.write_event(event)
            if time.monotonic() - self._flushed > 2:
                self._writer._py_recordio_writer._writer.flush()  # tensorboardX's own flush also fsyncs, which is too slow
                self._flushed = time.monotonic()
        except OSError as error:
            self._give_up(error)
        else:
            self._failing = False

    def _give_up(self, error: OSError) -> None:
        # Half a record spoils the rest of its file, so the next write begins a new file.
        if self._writer is not None:
            with contextlib.suppress(OSError):  # closing writes what is buffered, which fails as before
                self._writer._py_recordio_writer.close()
        self._writer = None
        if not self._failing:
            self._alert(f"cannot write TensorBoard events: {error.strerror}; training continues without them")
        self._failing = True

    def close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)


class Wandb:
    """Weights & Biases. Offline unless WANDB_MODE or WANDB_API_KEY says otherwise; `wandb sync` sends it later."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], on_alert: Alert) -> None:
        wandb = _optional("wandb", "wandb")
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "shoal"),
            name=folder.path.name,
            dir=str(folder.path),
            config=dict(config),
            mode=mode,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({name: float(value) for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, into MLFLOW_TRACKING_URI or, without it, a file store in the run folder."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], on_alert: Alert) -> None:
        mlflow = _optional("mlflow", "mlflow")
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if not store:
            # MLflow prefers a database, which its small package cannot open.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            store = (folder.path / "mlruns").resolve().as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=store)
        experiment = self._client.get_experiment_by_name("shoal")
        number = experiment.experiment_id if experiment else self._client.create_experiment("shoal")
        self._run = self._client.create_run(number, run_name=folder.path.name).info.run_id
        for name, value in flattened(config).items():
            self._client.log_param(self._run, name, str(value)[:500])  # as long as MLflow allows
        self._metric = mlflow.entities.Metric

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Tee:
    """Writes to all sinks. A sink that raises is reported and left out from then on."""

    def __init__(self, sinks: Sequence[Sink], on_alert: Alert) -> None:
        self._sinks = list(sinks)
        self._alert = on_alert

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for sink in list(self._sinks):
            try:
                sink.write(step, values)
            except Exception as error:  # a tracker's own failure must not end the run
                self._sinks.remove(sink)
                self._alert(f"metrics no longer go to {type(sink).__name__}: {type(error).__name__}: {error}")

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self._alert(f"could not finish {type(sink).__name__}: {type(error).__name__}: {error}")
        self._sinks = []


SINKS: dict[str, Callable[[RunFolder, Mapping[str, Any], Alert], Sink]] = {
    "jsonl": JsonLines,
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
}


def check_sinks(names: Sequence[str]) -> None:
    """`BadInput` for a sink that is unknown."""
    for name in names:
        if name not in SINKS:
            raise BadInput(f"unknown sink {name!r}.{nearest(name, SINKS)} There are: {', '.join(SINKS)}.")


def open_sinks(
    names: Sequence[str], folder: RunFolder, config: Mapping[str, Any], on_alert: Alert = lambda message: None
) -> Tee:
    """All of `names` as one sink. Raises `BadInput` for a sink that is unknown, not installed, or that cannot start."""
    check_sinks(names)
    opened: list[Sink] = []
    for name in dict.fromkeys(names):
        try:
            opened.append(SINKS[name](folder, config, on_alert))
        except Exception as error:
            Tee(opened, on_alert).close()
            if isinstance(error, BadInput):
                raise
            reason = next(iter(str(error).splitlines()), "")
            raise BadInput(f"sink {name!r} cannot start: {type(error).__name__}: {reason}") from error
    return Tee(opened, on_alert)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`. A cut-off last line is left out; damage elsewhere raises `BadInput`."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadInput(f"cannot read metrics {str(path)!r}: {error.strerror}") from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif line and number < len(lines):
            raise BadInput(f"line {number} of {str(path)!r} is not a JSON object")
    return rows


class MetricLines:
    """Follows a `metrics.jsonl` that another process writes. The first `read` bytes are known already."""

    def __init__(self, path: Path, read: int = 0) -> None:
        self._path, self._read = path, read

    def new(self) -> list[dict[str, Any]]:
        """The rows since the last call; an incomplete line is returned later."""
        try:
            with self._path.open("rb") as file:
                # A resumed run first cuts off a line that was not complete.
                file.seek(min(self._read, os.fstat(file.fileno()).st_size))
                whole, newline, rest = file.read().rpartition(b"\n")
                self._read = file.tell() - len(rest)
        except FileNotFoundError:
            return []
        rows = [_row(line) for line in whole.split(b"\n")] if newline else []
        return [row for row in rows if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _mend(path: Path) -> None:
    """Terminate the last line, or cut it off if it is incomplete."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole == len(data):
            return
        if _row(data[whole:]) is not None:
            file.write(b"\n")
        else:
            file.truncate(whole)


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(f"sink {extra!r} needs a package that is not installed: pip install 'shoal[{extra}]'") from None


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"algo": {"clip": 0.2}} as {"algo.clip": 0.2}."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
