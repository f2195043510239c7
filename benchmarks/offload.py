"""Bellman targets of a minibatch, for `run.py`: one JSON object with one row per way of computing them.

one at a time            two predictions a sample, as published: of what follows by the target network, of the state by the newest
one at a time, spread    the same, shared out among idle processes: what was published as the remedy, 3.3 times on 4 processes
batched                  one compiled call for the whole minibatch
batched, spread          parts of the minibatch, one call each, shared out among idle processes

Spread: samples and targets go through the Stream port between processes over shared memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.program import Context, Ports, Program, Report, RoleSpec, Steps, StreamSpec
from shoal.core.record import Field, Record
from shoal.core.spec import ActionSpec, Categorical, EnvSpec, ObsSpec
from shoal.nets.q_network import QNetConfig, QNetwork
from shoal.ops.q_learning import value_of
from shoal.process.device import settle_process
from shoal.runtimes.processes import Processes, ProcessesConfig

OBS, ACTIONS, HIDDEN, GAMMA = 8, 4, (64, 128), 0.99
Compute = Callable[[Mapping[str, np.ndarray]], np.ndarray]


@jax.jit
def predict(params: Any, obs: Any) -> Any:
    return net().q(params, obs)


@jax.jit
def batched_targets(params: Any, target: Any, rows: Any) -> Any:
    """[N, A]: the newest values, with that of the chosen action replaced by `r + gamma d max q_target`."""
    q_t = net().q(target, rows["next_obs"])
    expected = rows["reward"] + GAMMA * rows["discount"] * value_of(q_t, jnp.argmax(q_t, axis=-1))
    chosen = jax.nn.one_hot(rows["action"], ACTIONS, dtype=bool)
    return jnp.where(chosen, expected[:, None], net().q(params, rows["obs"]))


def net() -> QNetwork:
    spec = EnvSpec("offload", ObsSpec((OBS,)), ActionSpec((Categorical((ACTIONS,)),), scalar=True))
    return QNetwork(QNetConfig(hidden=HIDDEN), spec)


def weights() -> tuple[Any, Any]:
    """The newest weights and the target's. Sending them to the processes is not measured: in a run a Board publishes them."""
    return tuple(jax.jit(net().init)(jax.random.key(seed)) for seed in (0, 1))  # type: ignore[return-value]


def one_at_a_time() -> Compute:
    params, target = weights()

    def compute(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        made = []
        for i in range(len(rows["reward"])):
            best = float(np.max(predict(target, rows["next_obs"][i : i + 1])))
            values = np.array(predict(params, rows["obs"][i : i + 1])[0])
            values[rows["action"][i]] = rows["reward"][i] + GAMMA * rows["discount"][i] * best
            made.append(values)
        return np.stack(made)

    return compute


def batched() -> Compute:
    params, target = weights()
    return lambda rows: np.asarray(batched_targets(params, target, dict(rows)))


WAYS: dict[str, Callable[[], Compute]] = {"one at a time": one_at_a_time, "batched": batched}


def samples(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(size, OBS)).astype(np.float32),
        "action": rng.integers(ACTIONS, size=size).astype(np.int32),
        "reward": rng.normal(size=size).astype(np.float32),
        "discount": (rng.random(size) > 0.02).astype(np.float32),
        "next_obs": rng.normal(size=(size, OBS)).astype(np.float32),
    }


class Worker:
    """An idle process: takes its part of a minibatch, answers its targets."""

    def __init__(self, way: str, index: int, ports: Ports, context: Context) -> None:
        self._work, self._back, self._index = ports[f"work-{index}"], ports["back"], index
        settle_process()
        self._compute = WAYS[way]()

    def run(self) -> Steps:
        while True:
            rows = yield from self._work.take(0)
            made = self._compute(rows)
            slot = yield from self._back.claim(self._index)
            slot["targets"][...] = made
            self._back.push(self._index)
            self._work.release(0)

    def snapshots(self) -> dict[str, dict[str, np.ndarray]]:
        return {}

    def close(self) -> None:
        return None


class Learner(Worker):
    """Shares out the same minibatch repeatedly; reports how long one takes, and its targets."""

    def __init__(self, size: int, workers: int, times: int, ports: Ports, context: Context) -> None:
        self._size, self._workers, self._times, self._ports = size, workers, times, ports

    def run(self) -> Steps:
        rows, part, took = samples(self._size), self._size // self._workers, []
        made = np.empty((self._size, ACTIONS), np.float32)
        for _ in range(self._times + 2):
            began = time.perf_counter()
            for i in range(self._workers):
                slot = yield from self._ports[f"work-{i}"].claim(0)
                for name, array in rows.items():
                    slot[name][...] = array[i * part : (i + 1) * part]
                self._ports[f"work-{i}"].push(0)
            for i in range(self._workers):
                slot = yield from self._ports["back"].take(i)
                made[i * part : (i + 1) * part] = slot["targets"]
                self._ports["back"].release(i)
            took.append(time.perf_counter() - began)
        seconds = float(np.median(took[2:]))  # the first compile
        yield Report(version=0, env_steps=0, began_at=0.0, ended_at=seconds, episodes=(), metrics={}, state=made)


def spread(way: str, size: int, workers: int, times: int) -> tuple[float, np.ndarray]:
    """(seconds a minibatch, its targets) with the work shared out among processes."""
    names = tuple(f"worker-{i}" for i in range(workers))
    part = Record.like(samples(size // workers))
    answer = Record((Field("targets", (size // workers, ACTIONS), "float32"),))
    ports: dict[str, Any] = {
        f"work-{i}": StreamSpec(producers=("learner",), consumer=name, depth=1, record=part)
        for i, name in enumerate(names)
    }
    ports["back"] = StreamSpec(producers=names, consumer="learner", depth=1, record=answer)
    roles = [RoleSpec(name="learner", build=partial(Learner, size, workers, times), main=True)]
    roles += [RoleSpec(name=name, build=partial(Worker, way, i), core=i) for i, name in enumerate(names)]
    session = Processes(ProcessesConfig()).start(Program(roles=tuple(roles), ports=ports), lambda: False)
    try:
        report = next(event for event in session if isinstance(event, Report))
        return report.ended_at, report.state
    finally:
        session.close()


def alone(way: str, size: int, times: int) -> tuple[float, np.ndarray]:
    compute, rows, took = WAYS[way](), samples(size), []
    for _ in range(times + 2):
        began = time.perf_counter()
        made = compute(rows)
        took.append(time.perf_counter() - began)
    return float(np.median(took[2:])), made


def main(sizes: list[int], processes: list[int], times: int) -> dict[str, Any]:
    settle_process()
    rows = []
    for size in sizes:
        base, right = alone("one at a time", size, max(3, times // 10))
        cases = [("one at a time, as published", base, right), ("batched", *alone("batched", size, times))]
        for workers in processes:
            for way, count in (("one at a time", max(3, times // 10)), ("batched", times)):
                cases.append((f"{way}, spread over {workers} processes", *spread(way, size, workers, count)))
        for case, seconds, made in cases:
            np.testing.assert_allclose(made, right, atol=1e-4)  # all ways agree on what they compute
            rows.append({"case": f"{size}: {case}", "targets_per_s": size / seconds, "gain": base / seconds})
    return {"rows": rows, "cores": len(os.sched_getaffinity(0))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print(json.dumps(main([128] if quick else [128, 4096], [2] if quick else [2, 4], 20 if quick else 300)))
