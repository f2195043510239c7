"""A parent and its children in one process: the parent in the test's thread, each child in a thread of its own."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from shoal.federation import Parent, join
from shoal.federation.child import Joined
from shoal.federation.settings import FederationConfig
from shoal.federation.token_files import read_token

UNROLL, ENVS = 4, 2
A2C = {"name": "a2c", "unroll": UNROLL}
PPO = {"name": "ppo", "unroll": UNROLL, "batch_size": 8, "epochs": 2, "normalise_obs": True, "normalise_reward": True}
DQN = {"name": "dqn", "unroll": UNROLL, "batch_size": 8, "warmup": 8, "capacity": 64, "target_every": 4, "n_step": 1}
RUN = {"net": {"hidden": (4,)}, "eval_episodes": 0, "sinks": ("jsonl",), "quiet": True}
CHILD = {"runtime": "inline", "actors": 1, "envs": ENVS, "checkpoint_every": 1000.0}


class Family(NamedTuple):
    """What became of a parent and its children."""

    summary: dict[str, Any]
    children: dict[str, Joined]
    parent: Parent


def parent_of(out: Path | None, *, env: Any = "CartPole-v1", **settings: Any) -> Parent:
    federation = settings.pop("federation", FederationConfig(every_updates=1, eval_every=0))
    return Parent(env, out=out, federation=federation, **{"bind": "127.0.0.1:0", **RUN, **settings})


def train(out: Path, children: dict[str, dict[str, Any]], **settings: Any) -> Family:
    """Run a federation to its end."""
    joined: dict[str, Joined] = {}
    failures: list[BaseException] = []
    with parent_of(None if settings.get("resume") else out / "parent", **settings) as parent:

        def child(name: str, own: dict[str, Any]) -> None:
            try:
                own = {**CHILD, **own}
                joined[name] = join(
                    parent.url,
                    token=read_token(parent.token_file),
                    name=name,
                    out=out / name,
                    trust=True,
                    quiet=True,
                    settings=own,
                )
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=child, args=each) for each in children.items()]
        for thread in threads:
            thread.start()
        parent._over_outside = lambda: not any(thread.is_alive() for thread in threads)
        summary = parent.run()
        for thread in threads:
            thread.join(60)
    if failures:
        raise failures[0]
    return Family(summary, joined, parent)


class Unhurried(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A pole that leaves the processor to others. All of them are in this process: their steps show that training goes on."""

    steps = 0

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        Unhurried.steps += 1
        return super().step(action)
