"""Averaging without a lock: alone the same bits as with one; together every push counts once, and nothing waits."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import A2C, train
from parents import Wire, connected, make_courier, make_hub, serving, to_bytes

from shoal.core.errors import BadInput
from shoal.federation import wire
from shoal.federation.courier import Exchanged, Update
from shoal.federation.hogwild import Job
from shoal.federation.hub import Hub
from shoal.federation.link import Link
from shoal.federation.rules import RULES
from shoal.federation.rules.rule import COLUMNS, Contribution, InPlace
from shoal.federation.session import Answer
from shoal.federation.settings import FederationConfig

IN_PLACE = ["alpha_beta", "staleness"]


def push(made: Wire, vector: np.ndarray, **settings: Any) -> Exchanged:
    answer = made.request(*made.courier.push(Update(vector.astype(np.float32), made.hub.state.version, **settings)))
    assert answer is not None and isinstance(answer.header, wire.Pushed), answer
    return made.courier.answered(answer)


def begun(made: Wire, vector: np.ndarray) -> Job | Answer:
    """A push that has arrived."""
    update = Update(vector.astype(np.float32), made.hub.state.version, steps=3)
    assert made.session.feed(to_bytes(*made.courier.push(update))) is None
    return made.session.begin(0.0)


def heard(made: Wire, answer: Answer) -> Any:
    assert answer.message is not None
    made.side._waits = wire.Pushed
    made.side.feed(b"".join(bytes(piece) for piece in answer.message))
    return made.side.finish().header


@pytest.mark.parametrize("rule", IN_PLACE)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_in_place_is_the_rule_bit_for_bit(rule: str, alpha: float) -> None:
    made, rng = RULES[rule](alpha=alpha), np.random.default_rng(0)
    parent, child = (rng.normal(size=COLUMNS + 17).astype(np.float32) for _ in range(2))
    one = Contribution("one", child, staleness=3, share=0.7)
    step, copy, given = made.receive(parent, None, one, 1, 0.0), parent.copy(), child.copy()
    made.mix(copy, one)
    assert copy.tobytes() == step.parent.tobytes() and child.tobytes() == given.tobytes()


@pytest.mark.parametrize("rule", IN_PLACE)
@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_one_child_gives_the_same_bits_with_and_without_a_lock(rule: str, encoding: str) -> None:
    ends = []
    for consistency in ("lock", "hogwild"):
        hub, rng = (
            make_hub(300, rule=rule, consistency=consistency, by_steps=True, normaliser=2),
            np.random.default_rng(1),
        )
        made = connected(hub, encoding=encoding)
        answers = [push(made, rng.normal(size=300), steps=int(rng.integers(1, 9))) for _ in range(12)]
        assert all(not np.array_equal(a.weights, b.weights) for a, b in itertools.pairwise(answers))
        state = hub.state
        ends.append((state.weights.tobytes(), state.version, state.children, [a.weights.tobytes() for a in answers]))  # type: ignore[union-attr]
    assert ends[0] == ends[1]


def test_a_run_of_one_child_gives_the_same_weights(tmp_path: Path) -> None:
    """By hash; the child waits for each answer, so that it always takes them in at the same update."""
    hashes = {}
    for consistency in ("lock", "hogwild"):
        federation = FederationConfig(
            every_updates=1,
            eval_every=0,
            overlap=False,
            updates=5,
            consistency=consistency,  # type: ignore[arg-type]
        )
        family = train(tmp_path / consistency, {"one": {"seed": 1}}, algo=A2C, federation=federation, seed=1)
        assert family.summary["updates"] == family.summary["exchanges"] == 5
        hashes[consistency] = family.summary["params_sha256"]
    assert hashes["lock"] == hashes["hogwild"]


def test_pulls_are_served_from_a_snapshot_while_a_push_is_under_way() -> None:
    hub = make_hub(alpha=0.5, consistency="hogwild")
    first, second = connected(hub, "one"), connected(hub, "two")
    job = begun(first, np.full(8, 3.0))
    assert isinstance(job, Job)
    before = hub.state.weights
    answer = second.request(second.courier.pull())
    assert answer is not None
    got = second.courier.answered(answer)
    assert got.version == 0 and got.weights is not None and got.weights.tobytes() == before.tobytes()
    job.run()
    assert hub.state.weights is before and hub.state.pushes == 0, "it counts when the hub's thread hears of it"
    assert heard(first, first.session.end(job)).applied
    assert (hub.state.version, hub.state.pushes, hub.state.steps) == (1, 1, 3)
    np.testing.assert_allclose(hub.state.weights, 0.5 * before + 1.5, rtol=1e-6)
    assert not hub.state.weights.flags.writeable


def test_an_older_snapshot_that_ends_later_takes_nothing_back() -> None:
    hub = make_hub(alpha=0.5, consistency="hogwild")
    wires = [connected(hub, name) for name in ("one", "two")]
    jobs = [begun(made, np.full(8, value)) for made, value in zip(wires, (2.0, 4.0), strict=True)]
    for job in jobs:
        assert isinstance(job, Job)
        job.run()
    both = 0.5 * (0.5 * hub.state.weights + 1.0) + 2.0
    for made, job in reversed(list(zip(wires, jobs, strict=True))):
        made.session.end(job)  # type: ignore[arg-type]
        np.testing.assert_allclose(hub.state.weights, both, rtol=1e-6)
    assert hub.state.version == hub.state.pushes == 2


def test_a_push_that_is_repeated_while_it_is_under_way_counts_once() -> None:
    hub = make_hub(consistency="hogwild")
    made = connected(hub)
    job = begun(made, np.ones(8))
    assert isinstance(job, Job)
    newer = Wire(hub, made.courier)  # the connection was lost, and the push is not answered yet
    newer.join()
    refused = newer.request(*made.courier.repeat())
    assert refused is not None and refused.header.reason == "rate" and not refused.header.fatal
    assert refused.header.retry_after > 0 and made.courier.refused(refused.header) is None and made.courier.open
    job.run()
    assert made.session.end(job) == Answer(None, True), "nobody listens at the old connection"
    assert hub.state.pushes == 1
    again = newer.request(*made.courier.repeat())
    assert again is not None and not again.header.applied and not hub.guard.strikes
    assert hub.state.pushes == hub.state.children["one"].pushes == 1


def test_what_ends_after_the_training_does_not_count() -> None:
    hub = make_hub(consistency="hogwild")
    made = connected(hub)
    job = begun(made, np.ones(8))
    assert isinstance(job, Job)
    before, hub.stop = hub.state, True
    job.run()
    pushed = heard(made, made.session.end(job))
    assert pushed.stop and not pushed.applied and hub.state is before


@pytest.mark.parametrize("wrong", [np.nan, 1e9])
def test_what_is_refused_changes_nothing_and_the_child_may_go_on(wrong: float) -> None:
    hub = make_hub(consistency="hogwild")
    assert hub.unlocked is not None
    made, before = connected(hub), hub.unlocked._weights.tobytes()
    vector = np.ones(8, np.float32)
    vector[3] = wrong
    answer = made.request(*made.courier.push(Update(vector, 0)))
    assert answer is not None and answer.header.reason in ("non-finite", "magnitude")
    assert made.courier.refused(answer.header) is None
    assert hub.unlocked._weights.tobytes() == before and hub.state.pushes == 0
    assert push(made, np.ones(8)).applied


def test_a_job_that_fails_is_told_where_it_was_begun_and_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = make_hub(consistency="hogwild")
    made = connected(hub)

    def broken(*arguments: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Hub, "decoded", broken)
        job = begun(made, np.ones(8))
        assert isinstance(job, Job)
        job.run()
    with pytest.raises(MemoryError):
        made.session.end(job)
    newer = Wire(hub, made.courier)
    newer.join()
    again = newer.request(*made.courier.repeat())
    assert again is not None and again.header.applied and hub.state.pushes == 1


def test_many_children_at_once() -> None:
    """Over sockets, on vectors that NumPy works on without the interpreter's lock: exactly once, and between what was sent."""
    size, pushes, children = 3 * COLUMNS, 8, 4
    hub = make_hub(size, alpha=0.5, consistency="hogwild")

    def child(number: int) -> None:
        vector = np.full(size, number, np.float32)
        with Link(url, make_courier(f"child-{number}")) as link:
            for _ in range(pushes):
                link.give(Update(vector, base=0, steps=1))
                got = link.take(None)
                assert got is not None and got.applied and got.weights is not None
                ends.append((float(got.weights.min()), float(got.weights.max())))

    ends: list[tuple[float, float]] = []
    with serving(hub) as url:
        threads = [threading.Thread(target=child, args=(number,)) for number in range(children)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(ends) == children * pushes == hub.state.pushes == hub.state.version == hub.state.steps
    assert {(known.sequence, known.pushes) for known in hub.state.children.values()} == {(pushes, pushes)}
    assert all(low >= -1.0 and high <= children - 1 for low, high in ends)  # it began between -1 and 1
    assert hub.unlocked is not None and hub.unlocked._weights.tobytes() == hub.state.weights.tobytes()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *(({"rule": name}, f"--rule {name}, which gathers pushes first") for name in RULES if name not in IN_PLACE),
        ({"transport": "udp"}, "--transport udp"),
        ({"moments": "travel"}, "--moments travel"),
    ],
)
def test_what_needs_a_lock_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        FederationConfig(consistency="hogwild", **settings)
    FederationConfig(**settings)


def test_only_rules_that_work_at_once_are_in_place() -> None:
    assert [name for name, rule in RULES.items() if issubclass(rule, InPlace)] == IN_PLACE
