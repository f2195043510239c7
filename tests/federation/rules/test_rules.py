"""Each rule against a slow oracle in the formula's own symbols, and what all of them have in common."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.federation.rules import RULES
from shoal.federation.rules.alpha_beta import alpha_beta
from shoal.federation.rules.clipped_mean import clipped_mean
from shoal.federation.rules.diloco import diloco
from shoal.federation.rules.fedavg import fedavg
from shoal.federation.rules.fedbuff import fedbuff
from shoal.federation.rules.median import median
from shoal.federation.rules.rule import Contribution, Memory
from shoal.federation.rules.staleness import staleness
from shoal.federation.rules.trimmed_mean import trimmed_mean

RNG = np.random.default_rng(0)


def vectors(count: int, size: int = 50) -> list[np.ndarray]:
    return [RNG.normal(size=size).astype(np.float32) for _ in range(count)]


def close(found: np.ndarray, wanted: Sequence[float]) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_alpha_beta(alpha: float) -> None:
    p, c = vectors(2)
    close(alpha_beta(p, c, alpha), [(1 - alpha) * float(x) + alpha * float(y) for x, y in zip(p, c, strict=True)])


def test_alpha_beta_is_exact_at_its_ends() -> None:
    p, c = vectors(2)
    c[0] = -0.0
    assert alpha_beta(p, c, 1.0).tobytes() == c.tobytes()
    assert alpha_beta(p, c, 0.0).tobytes() == p.tobytes()


def test_fedavg() -> None:
    cs, s = vectors(4), [1.0, 2.0, 0.5, 3.0]
    close(fedavg(cs, s), [sum(w * float(c[j]) for w, c in zip(s, cs, strict=True)) / sum(s) for j in range(50)])


def test_staleness() -> None:
    p, d = vectors(2)
    close(
        staleness(p, d, 3, 0.6, 0.5), [float(x) + 0.6 * (1 + 3) ** -0.5 * float(y) for x, y in zip(p, d, strict=True)]
    )


def test_fedbuff() -> None:
    p, *ds = vectors(4)
    taus, s = [0, 3, 8], [1.0, 1.0, 2.0]
    wanted = [
        float(p[j]) + 0.7 * sum(w * (1 + t) ** -0.5 * float(d[j]) for d, t, w in zip(ds, taus, s, strict=True)) / sum(s)
        for j in range(50)
    ]
    close(fedbuff(p, ds, taus, s, 0.7), wanted)


@pytest.mark.parametrize("nesterov", [False, True])
def test_diloco(nesterov: bool) -> None:
    p, m, d = vectors(3)
    after, momentum = diloco(p, m, d, 0.7, 0.5, nesterov)
    slow_m = [0.5 * float(x) + float(y) for x, y in zip(m, d, strict=True)]
    step = [float(y) + 0.5 * x for x, y in zip(slow_m, d, strict=True)] if nesterov else slow_m
    close(momentum, slow_m)
    close(after, [float(x) + 0.7 * y for x, y in zip(p, step, strict=True)])


def test_clipped_mean() -> None:
    p, *cs = vectors(6)
    cs[0] = cs[0] * 1000
    far = [sum((float(a) - float(b)) ** 2 for a, b in zip(c, p, strict=True)) ** 0.5 for c in cs]
    bound = 1.5 * statistics.median(far)
    wanted = [
        float(p[j])
        + sum((float(c[j]) - float(p[j])) * min(1.0, bound / f) for c, f in zip(cs, far, strict=True)) / len(cs)
        for j in range(50)
    ]
    close(clipped_mean(p, cs, 1.5), wanted)


@pytest.mark.parametrize(
    ("count", "trim", "cut"), [(3, 0.25, 1), (8, 0.25, 2), (9, 0.0, 1), (5, 0.49, 2), (4, 0.45, 1)]
)
def test_trimmed_mean(count: int, trim: float, cut: int) -> None:
    cs = vectors(count)
    wanted = []
    for j in range(50):
        values = sorted(float(c[j]) for c in cs)[cut : count - cut]
        wanted.append(sum(values) / len(values))
    close(trimmed_mean(cs, trim), wanted)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_median(count: int) -> None:
    cs = vectors(count)
    close(median(cs), [statistics.median(float(c[j]) for c in cs) for j in range(50)])


def test_long_vectors_are_averaged_like_short_ones() -> None:
    """Averages work through columns, the last of them shorter."""
    cs = vectors(3, (1 << 18) + 7)
    close(fedavg(cs, [1.0, 1.0, 1.0]), np.mean(cs, axis=0, dtype=np.float64))
    close(median(cs), np.median(cs, axis=0))
    assert trimmed_mean(cs, 0.3).tobytes() == median(cs).tobytes()
    close(clipped_mean(cs[0], cs, 100.0), np.mean(cs, axis=0, dtype=np.float64))


# What every rule must do


def received(
    rule: Any, parent: np.ndarray, contributions: Sequence[Contribution], present: int
) -> tuple[np.ndarray, Memory]:
    memory, now = Memory(), 0.0
    for one in contributions:
        now += 1.0
        step = rule.receive(parent, memory, one, present, now)
        memory = step.memory
        parent = parent if step.parent is None else step.parent
    return parent, memory


@pytest.mark.parametrize("name", RULES)
@given(k=st.integers(3, 6), seed=st.integers(0, 1000))
def test_k_equal_nets_are_their_average(name: str, k: int, seed: int) -> None:
    """Bit for bit: the parent and its children agree, and the rule leaves it at that."""
    rule = RULES[name]()
    net = np.random.default_rng(seed).normal(size=33).astype(np.float32)
    vector = net if rule.takes == "weights" else np.zeros_like(net)
    shares = np.random.default_rng(seed).uniform(0.1, 1.0, k)
    after, _ = received(rule, net, [Contribution(f"c{i}", vector, i, float(shares[i])) for i in range(k)], k)
    assert after.tobytes() == net.tobytes()


@pytest.mark.parametrize("name", ["fedavg", "trimmed_mean", "median"])
def test_equal_children_replace_a_different_parent(name: str) -> None:
    parent, child = vectors(2)
    after, memory = received(RULES[name](), parent, [Contribution(f"c{i}", child, share=0.1 + i) for i in range(5)], 5)
    assert after.tobytes() == child.tobytes()
    assert memory.pending == ()


@pytest.mark.parametrize("name", RULES)
def test_no_rule_changes_what_it_is_given(name: str) -> None:
    parent, *children = vectors(5)
    for vector in (parent, *children):
        vector.setflags(write=False)
    received(RULES[name](), parent, [Contribution(f"c{i}", child) for i, child in enumerate(children)], 4)


@pytest.mark.parametrize("name", RULES)
def test_rules_describe_themselves(name: str) -> None:
    rule = RULES[name]()
    assert rule.about and rule.takes in ("weights", "delta") and rule.adopts in ("always", "newer")
    assert 0.0 <= rule.pull <= 1.0


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "clipped_mean"])
def test_one_untrusted_child_of_five_cannot_move_the_parent_far(name: str) -> None:
    honest = [np.full(10, 1.0 + 0.01 * i, np.float32) for i in range(4)]
    hostile = np.full(10, 1e6, np.float32)
    contributions = [
        Contribution(f"c{i}", v, share=1e9 if v is hostile else 1.0) for i, v in enumerate([*honest, hostile])
    ]
    after, _ = received(RULES[name](), np.ones(10, np.float32), contributions, 5)
    assert np.all(np.abs(after - 1.0) < 0.2)


# Rounds

ROUNDS = ["fedavg", "diloco", "clipped_mean", "trimmed_mean", "median"]


@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_waits_for_its_quorum_then_for_its_grace(name: str) -> None:
    rule = RULES[name](quorum=3, grace=2.0)
    parent, *children = vectors(4)
    memory = Memory()
    for i in range(2):
        step = rule.receive(parent, memory, Contribution(f"c{i}", children[i]), 5, float(i))
        assert step.parent is None
        memory = step.memory
    assert rule.tick(parent, memory, 5, 1000.0).parent is None, "no quorum, however long"
    step = rule.receive(parent, memory, Contribution("c2", children[2]), 5, 1000.0)
    assert step.parent is None, "two of five are late"
    assert rule.tick(parent, step.memory, 5, 1001.9).parent is None
    ended = rule.tick(parent, step.memory, 5, 1002.0)
    assert ended.parent is not None and ended.memory.pending == ()
    assert sum(weight for _, weight in ended.used) == pytest.approx(1.0)
    assert rule.tick(parent, step.memory, 3, 1000.1).parent is not None, "the late ones left"


def test_a_newer_push_of_a_child_takes_the_place_of_its_older() -> None:
    rule = RULES["fedavg"](quorum=2, grace=100.0)
    parent, old, new, other = vectors(4)
    memory = rule.receive(parent, Memory(), Contribution("a", old), 2, 0.0).memory
    memory = rule.receive(parent, memory, Contribution("a", new), 2, 1.0).memory
    assert len(memory.pending) == 1
    step = rule.receive(parent, memory, Contribution("b", other), 2, 2.0)
    np.testing.assert_array_equal(step.parent, fedavg([new, other], [1.0, 1.0]))


def test_changes_of_a_child_add_up_in_a_round() -> None:
    """A child measures each change from its last push: of the older one, nothing may be lost."""
    rule = RULES["diloco"](quorum=2, grace=100.0, rate=1.0, momentum=0.0)
    parent, old, new, other = vectors(4)
    memory = rule.receive(parent, Memory(), Contribution("a", old), 2, 0.0).memory
    memory = rule.receive(parent, memory, Contribution("a", new), 2, 1.0).memory
    assert len(memory.pending) == 1
    step = rule.receive(parent, memory, Contribution("b", other), 2, 2.0)
    assert step.parent is not None
    np.testing.assert_allclose(step.parent, parent + (old + new + other) / 2, rtol=1e-5)


def test_a_restored_round_gets_its_grace_again() -> None:
    rule = RULES["fedavg"](quorum=1, grace=5.0)
    parent, one = vectors(2)
    restored = Memory((Contribution("a", one),), None)
    step = rule.tick(parent, restored, 3, 50.0)
    assert step.parent is None and step.memory.quorum_at == 50.0
    assert rule.tick(parent, step.memory, 3, 55.0).parent is not None


def test_fedbuff_applies_every_k_changes_whoever_sent_them() -> None:
    rule = RULES["fedbuff"](buffer=3)
    parent, change = vectors(2)
    versions = 0
    memory = Memory()
    for _ in range(7):
        step = rule.receive(parent, memory, Contribution("a", change), 1, 0.0)
        memory, versions = step.memory, versions + (step.parent is not None)
    assert versions == 2 and len(memory.pending) == 1


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("alpha_beta", {"alpha": 1.1}, "alpha is 1.1; it must lie in \\[0, 1\\]"),
        ("alpha_beta", {"beta": -0.1}, "beta is -0.1"),
        ("alpha_beta", {"alpha": float("nan")}, "alpha is nan"),
        ("staleness", {"alpha": 2.0}, "alpha is 2.0"),
        ("staleness", {"power": -1.0}, "power is -1.0"),
        ("fedbuff", {"buffer": 0}, "buffer is 0"),
        ("fedbuff", {"rate": 0.0}, "rate is 0.0"),
        ("diloco", {"momentum": 1.0}, "momentum is 1.0"),
        ("diloco", {"rate": -1.0}, "rate is -1.0"),
        ("fedavg", {"quorum": 0}, "quorum is 0"),
        ("fedavg", {"grace": -1.0}, "grace is -1.0"),
        ("median", {"quorum": 2}, "at least 3"),
        ("trimmed_mean", {"trim": 0.5}, "trim is 0.5"),
        ("clipped_mean", {"factor": 0.0}, "factor is 0.0"),
    ],
)
def test_bad_settings_are_refused_in_one_line(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        RULES[name](**settings)
