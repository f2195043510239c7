"""Workers on shared parameters with replays, and settings of theirs that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_runs import DQN, metrics, shared, train, vector

from shoal.core.errors import BadInput


def test_a_global_replay_is_drawn_from_by_all(tmp_path: Path) -> None:
    runs = {
        kind: train(tmp_path / kind, shared("lock", replay=kind), case="dqn", actors=2, updates=8, report_every=1)
        for kind in ("local", "global")
    }
    rows = {kind: metrics(run)[-1]["replay/rows"] for kind, run in runs.items()}
    assert rows["global"] > 1.5 * rows["local"] and runs["local"].params_hash != runs["global"].params_hash


def test_a_global_replay_holds_a_warm_up_of_its_whole_capacity(tmp_path: Path) -> None:
    """100 rows in three rings: one of 33 each would never hold them all."""
    algo = {**DQN, "capacity": 100, "warmup": 100}
    kind = shared("lock", replay="global", push_every=1)
    run = train(tmp_path / "run", kind, case="dqn", actors=3, updates=15, algo=algo)
    assert vector(run, "step")[0] > 0


def test_the_moments_of_many_workers_on_a_replay_stay_what_they_are(tmp_path: Path) -> None:
    """32 gradients an unroll forget nearly all of Adam's mean: four such changes added up would leave minus thrice of it."""
    algo = {**DQN, "every": 1, "learning_rate": 1e-6, "target_every": 10**6}
    kind = shared("hogwild", push_every=1)
    run = train(tmp_path / "run", kind, case="dqn", actors=4, updates=80, runtime="threads", algo=algo)
    means = [array for name, array in run._loaded().arrays.items() if name.startswith("state/moments/mu/")]
    assert means and max(np.abs(array).max() for array in means) < 10.0, "gradients are clipped to a norm of 10"


@pytest.mark.parametrize("consistency", ["hogwild", "lock"])
def test_gradients_of_a_replay_come_in_whole_pushes(consistency: str, tmp_path: Path) -> None:
    """Steps that did not earn a whole push are carried over, so the number of gradients is that of the steps."""
    counts = {}
    for together in (1, 4):
        kind = shared(consistency, push_every=together)
        algo = {**DQN, "every": 3, "warmup": 0}
        run = train(tmp_path / str(together), kind, case="dqn", actors=2, updates=20, algo=algo)
        counts[together] = vector(run, "step")[0]
        assert np.isfinite(vector(run)).all()
    assert counts[4] % 4 == 0 and 0 <= counts[1] - counts[4] < 4, counts


def test_the_default_push_shares_out_sixteen_gradients(tmp_path: Path) -> None:
    for actors, named in ((2, 8), (4, 4)):
        runs = [
            train(tmp_path / f"{actors}-{every}", kind, case="dqn", actors=actors, updates=12, algo={**DQN, "every": 1})
            for every, kind in ((None, shared("lock")), (named, shared("lock", push_every=named)))
        ]
        assert runs[0].params_hash == runs[1].params_hash


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"consistency": "chaos"}, r"'chaos': expected one of hogwild, lock, sharded, gossip"),
    "shards": ({"consistency": "sharded", "shards": 10**6}, r"--topology.shards is 1000000: the net has only \d+ para"),
    "sharded own": ({"consistency": "sharded", "moments": "own"}, "servers of sharded hold the moments"),
    "gossip shared": ({"consistency": "gossip", "moments": "shared"}, "every worker has its own"),
    "split sharded": ({"consistency": "sharded", "split": True}, "goes with hogwild, lock and gossip"),
    "split alone": ({"split": True}, "at least --actors 2"),
    "replay": ({"replay": "global"}, "algorithms that learn from a replay"),
    "many gradients": ({"moments": "shared"}, "several gradients, whose changes of the moments do not add up"),
    "rare pulls": ({"moments": "shared", "pull_every": 2}, "add up only if each push follows a pull"),
    "pulls by episodes": ({"moments": "shared", "pull": "episode"}, "add up only if each push follows a pull"),
    "push": ({"push_every": 4}, "--topology.push-every is 4: only algorithms that learn from a replay"),
    "servers": ({"shards": 3}, "--topology.shards is 3: it goes with --topology.consistency sharded"),
    "their queue": ({"consistency": "lock", "queue": 3}, "--topology.queue is 3: it goes with --topology.consistency"),
    "pull": ({"pull": "episode", "pull_every": 3}, "--topology.pull-every is 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    case = "ppo" if name == "many gradients" else "rmsprop"
    with pytest.raises(BadInput, match=message) as caught:
        train(tmp_path / "run", {"name": "shared_params", **options}, case=case)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("consistency", "what"), [("gossip", "the whole update"), ("sharded", "one gradient")])
def test_pushes_of_some_consistencies_have_a_size_of_their_own(consistency: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"--topology.push-every is 4: under {consistency} each push is {what}"):
        train(tmp_path / "run", shared(consistency, push_every=4), actors=2, case="dqn")


def test_one_worker_alone_has_nobody_to_push_for(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--topology.push-every is 4: it takes at least --actors 2"):
        train(tmp_path / "run", shared("lock", push_every=4), actors=1, case="dqn")


def test_split_needs_two_nets(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="share nothing"):
        train(tmp_path / "run", shared(split=True), actors=2, net={"hidden": (8,), "shared": True})
    with pytest.raises(BadInput, match="such as a2c"):
        train(tmp_path / "run", shared(split=True), actors=2, case="dqn")
