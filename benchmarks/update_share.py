"""A TD3 update alone, and what share of this machine's matmul rate it reaches: JSON on the last line.

Operations are those of the matrix products, a multiplication and an addition being two; those of Adam, of activations and of the
targets' moves are not counted, their time is. The rate of the machine is that of a large square float32 product in the same
process, on the one thread that XLA has there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algos.td3 import TD3, TD3Config
from shoal.core.algorithm import Drawn, Task
from shoal.core.trajectory import Transitions
from shoal.envs.pendulum import Pendulum
from shoal.learning.replay_update import compiled_replay
from shoal.nets.continuous import ContinuousNetConfig, DeterministicNet, count_entries
from shoal.process.device import settle_process

BATCH, COUNT, SIDE = 256, 16, 2048
CRITICS, DELAY = 2, 2


def flops(hidden: Sequence[int], obs: int, entries: int, batch: int = BATCH) -> float:
    """Of the matrix products of one TD3 update; those of the policy count by the share of updates that make them."""

    def layers(inputs: int, outputs: int) -> list[int]:
        widths = [inputs, *hidden, outputs]
        return [2 * batch * m * n for m, n in pairwise(widths)]

    critic, policy = layers(obs + entries, 1), layers(obs, entries)
    target = sum(policy) + CRITICS * sum(critic)
    # Backwards: the gradient of each matrix, and that of each layer's input except the first one's.
    critics = CRITICS * (2 * sum(critic) + sum(critic[1:]))
    through = 2 * sum(critic)  # one critic forwards, and back to the action
    delayed = through + 2 * sum(policy) + sum(policy[1:])
    return target + critics + delayed / DELAY


def seconds(call: Callable[[], Any], least: float) -> float:
    """The duration of the fastest call within `least` seconds."""
    jax.block_until_ready(call())
    took, until = [], time.perf_counter() + least
    while time.perf_counter() < until or len(took) < 5:
        began = time.perf_counter()
        jax.block_until_ready(call())
        took.append(time.perf_counter() - began)
    return min(took)


def matmul_rate(least: float) -> float:
    """Operations per second of a square product."""
    a, b = (jnp.asarray(np.random.default_rng(seed).normal(size=(SIDE, SIDE)), jnp.float32) for seed in (0, 1))
    product = jax.jit(jnp.matmul)
    return 2 * SIDE**3 / seconds(lambda: product(a, b), least)


def update_seconds(hidden: tuple[int, ...], least: float) -> float:
    """Of one update, as runs make them: several in one compiled call, rows already drawn."""
    spec = Pendulum().spec
    net = DeterministicNet(ContinuousNetConfig(hidden=hidden), spec)
    algorithm = TD3(TD3Config(batch_size=BATCH, policy_delay=DELAY), Task(spec=spec, envs=4), net)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    width, entries = spec.obs.shape[0], count_entries(spec)
    obs, following = rng.normal(size=(2, COUNT, BATCH, width)).astype(np.float32)
    action = rng.uniform(-2, 2, (COUNT, BATCH, entries)).astype(np.float32)
    reward, discount = rng.normal(size=(COUNT, BATCH)).astype(np.float32), np.full((COUNT, BATCH), 0.99, np.float32)
    drawn = jax.device_put(
        Drawn(Transitions(obs, action, reward, discount, following), np.ones((COUNT, BATCH), np.float32))
    )
    learn, key = compiled_replay(algorithm).learn, jax.random.key_data(jax.random.key(1))
    return seconds(lambda: learn(state, drawn, key), least) / COUNT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="+", default=["256,256", "400,300"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    given = parser.parse_args()
    settle_process()
    spec, rate = Pendulum().spec, matmul_rate(given.seconds)
    rows = []
    for net in given.nets:
        hidden = tuple(int(width) for width in net.split(","))
        took, work = update_seconds(hidden, given.seconds), flops(hidden, spec.obs.shape[0], count_entries(spec))
        rows.append({"net": net, "us_per_gradient": 1e6 * took, "matmul_share": work / took / rate})
    print(json.dumps({"matmul_gflops": rate / 1e9, "rows": rows}))


if __name__ == "__main__":
    main()
