"""A child's driver, without a run: what it gives, what it takes in, what it does while its parent is away."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.algorithm import LearnerState, Moments
from shoal.core.program import Episode, Report
from shoal.federation import wire
from shoal.federation.client import Refusal
from shoal.federation.courier import Exchanged, Update
from shoal.federation.driver import ExchangeDriver
from shoal.federation.normaliser import Counts, merge
from shoal.federation.settings import ExchangeConfig
from shoal.federation.vectors import StateVectors


class FakeLink:
    """Keeps what is given; answers come from the test."""

    def __init__(
        self, *, takes: str = "weights", beta: float = 0.5, adopts: str = "always", normaliser: int = 0
    ) -> None:
        class Courier:
            welcome = wire.Welcome(
                run="r", architecture="a", version=0, sequence=0, size=2, rule="x", takes=takes, beta=beta,
                adopts=adopts, normaliser=normaliser,
            )  # type: ignore[arg-type]  # fmt: skip

        self.courier, self.given, self.milliseconds = Courier(), [], [3.0]
        self.answers: list[Any] = []
        self.busy, self.connected = False, True

    def give(self, update: Update) -> None:
        assert not self.busy
        self.busy = True
        self.given.append(update)

    def take(self, timeout: float = 0.0) -> Exchanged | None:
        if not self.answers:
            self.connected = timeout == 0.0  # a child that waits finds the parent gone
            return None
        self.busy, got = False, self.answers.pop(0)
        if isinstance(got, Exception):
            raise got
        return got


def state(weights: list[float], obs: Moments | None = None, nu: list[float] | None = None) -> LearnerState:
    moments = {"nu": {"w": jnp.array(nu or [1.0, 1.0])}, "count": jnp.zeros(())}
    return LearnerState(
        {"w": jnp.array(weights, jnp.float32)}, moments, obs, None, jnp.zeros((), jnp.int32), jnp.zeros(()), {}
    )


def report(version: int, weights: list[float], episodes: int = 1, **more: Any) -> Report:
    return Report(
        version=version,
        env_steps=10 * version,
        began_at=0.0,
        ended_at=1.0,
        episodes=tuple(Episode(float(i), 5) for i in range(episodes)),
        metrics={},
        state=state(weights, **more),
    )


def answer(version: int, weights: list[float], **more: Any) -> Exchanged:
    return Exchanged(version, np.array(weights, np.float32), **{"applied": True, **more})


def driver(link: FakeLink, exchange: ExchangeConfig | None = None, *, moments: bool = False, **more: Any) -> Any:
    like = state([0, 0], more.pop("obs", None))
    begun = Exchanged(0, np.zeros(2, np.float32), **more)
    vectors = StateVectors(like, moments=moments)
    return ExchangeDriver(link, vectors, exchange or ExchangeConfig(), begun)  # type: ignore[arg-type]


def test_training_goes_on_while_an_exchange_is_under_way() -> None:
    link = FakeLink(beta=0.5)
    drive = driver(link)
    assert drive(report(1, [1, 1])) is None  # given, not answered
    assert drive(report(2, [2, 2], episodes=2)) is None
    link.answers.append(answer(1, [0, 0]))
    reply = drive(report(3, [3, 3]))
    np.testing.assert_array_equal(reply.weights, [2.5, 2.5])  # C' + beta (P - C), where C = 1 was pushed
    np.testing.assert_array_equal(link.given[1].vector, [2.5, 2.5])  # and that is what is given next
    assert (link.given[0].steps, link.given[0].episodes, link.given[0].base) == (10, 1, 0)
    assert (link.given[1].steps, link.given[1].episodes, link.given[1].base) == (20, 3, 1)
    assert link.given[1].returns == (0.0, 1.0, 0.0) and link.given[1].took == 3.0


def test_no_reply_where_the_parent_answers_with_what_was_pushed() -> None:
    link = FakeLink(beta=1.0)
    drive = driver(link)
    drive(report(1, [1, -0.0]))
    link.answers.append(answer(1, [1, -0.0]))
    assert drive(report(2, [2, -0.0])) is None  # nothing changes, not even the sign of a zero


def test_a_child_that_waits_adopts_at_once() -> None:
    link = FakeLink(beta=1.0)
    drive = driver(link, ExchangeConfig(every_updates=1, overlap=False))
    link.answers.append(answer(1, [7, 7]))
    np.testing.assert_array_equal(drive(report(1, [1, 1])).weights, [7, 7])
    assert drive(report(2, [8, 8])) is None  # the parent is gone: it does not wait for ever
    assert link.busy


def test_exchanges_are_counted_in_episodes_updates_or_seconds() -> None:
    link = FakeLink()
    drive = driver(link, ExchangeConfig(every_episodes=3))
    for version in (1, 2):
        drive(report(version, [1, 1]))
    assert not link.given
    drive(report(3, [1, 1]))
    assert len(link.given) == 1
    link = FakeLink()
    drive = driver(link, ExchangeConfig(every_updates=2))
    drive(report(1, [1, 1], episodes=9))
    assert not link.given
    drive(report(2, [1, 1], episodes=0))
    assert len(link.given) == 1
    link = FakeLink()
    driver(link, ExchangeConfig(every_seconds=1000.0))(report(50, [1, 1], episodes=50))
    assert not link.given


def test_changes_are_measured_from_what_the_parent_has() -> None:
    link = FakeLink(takes="delta", beta=1.0, adopts="newer")
    drive = driver(link)
    drive(report(1, [1, 1]))
    np.testing.assert_array_equal(link.given[0].vector, [1, 1])
    link.answers.append(answer(0, [0, 0]))  # buffered: the version is the old one
    assert drive(report(2, [3, 3])) is None
    np.testing.assert_array_equal(link.given[1].vector, [2, 2])  # since the push, not since the base again
    link.answers.append(answer(1, [10, 10]))
    np.testing.assert_array_equal(drive(report(3, [4, 4])).weights, [11, 11])  # P and what came after the push
    np.testing.assert_array_equal(link.given[2].vector, [1, 1])
    assert link.given[2].base == 1


def test_what_is_refused_is_counted_again() -> None:
    link = FakeLink()
    drive = driver(link)
    drive(report(1, [1, 1], episodes=2))
    link.answers.append(Refusal(wire.Refused(reason="magnitude", message="too large", fatal=False)))
    drive(report(2, [2, 2]))
    assert (link.given[1].steps, link.given[1].episodes) == (20, 3)


@pytest.mark.parametrize("adopts", ["always", "newer"])
def test_a_child_whose_base_its_parent_lost_comes_back(adopts: str) -> None:
    """It is not refused for the same base again and again, and adopts what the parent has now."""
    link = FakeLink(beta=1.0, adopts=adopts)
    drive = driver(link)
    drive(report(1, [1, 1]))
    link.answers.append(answer(900, [5, 5]))
    drive(report(2, [1, 1]))
    assert link.given[1].base == 900
    link.answers.append(
        Refusal(wire.Refused(reason="base", message="base version 900; the parent's is 7", fatal=False))
    )
    drive(report(3, [6, 6]))
    assert (link.given[2].base, link.given[2].steps) == (0, 20)
    link.answers.append(answer(8, [7, 7]))
    np.testing.assert_array_equal(drive(report(4, [6, 6])).weights, [7, 7])
    assert link.given[3].base == 8


def test_a_refusal_for_good_ends_the_run() -> None:
    link = FakeLink()
    drive = driver(link)
    drive(report(1, [1, 1]))
    link.answers.append(Refusal(wire.Refused(reason="superseded", message="another one")))
    with pytest.raises(Refusal, match="superseded"):
        drive(report(2, [2, 2]))


def test_the_parents_stop_stops_the_run() -> None:
    link = FakeLink()
    drive = driver(link)
    drive(report(1, [1, 1]))
    link.answers.append(answer(1, [1, 1], stop=True))
    assert drive(report(2, [2, 2])).stop
    assert len(link.given) == 1 and drive.told_to_stop
    drive.finish(state([2, 2]))
    assert len(link.given) == 1  # nothing more is given


def test_the_last_weights_are_given_at_the_end() -> None:
    link = FakeLink()
    drive = driver(link, ExchangeConfig(every_updates=100))
    drive(report(1, [1, 1]))
    link.answers.append(answer(1, [1, 1]))
    drive.finish(state([1, 1]))
    assert [update.steps for update in link.given] == [10]


@pytest.mark.parametrize("lost", [0, 1, 2, 9])
def test_a_last_push_without_an_answer_is_followed_by_another(lost: int) -> None:
    """The link counts the steps of lost pushes with the next one, so there has to be a next one; for a change, an empty one."""
    link = FakeLink(takes="delta")
    drive = driver(link, ExchangeConfig(every_updates=100))
    drive(report(1, [1, 1]))
    link.answers += [Exchanged(0, None)] * lost + [answer(1, [1, 1])]
    drive.finish(state([1, 1]))
    assert [update.steps for update in link.given] == [10] + [0] * min(lost, 4)
    assert [float(update.vector.sum()) for update in link.given] == [2.0] + [0.0] * min(lost, 4)


def test_the_answer_to_a_push_before_the_end_may_be_lost_too() -> None:
    link = FakeLink()
    drive = driver(link)
    drive(report(1, [1, 1]))
    link.answers += [Exchanged(0, None), answer(1, [1, 1])]
    drive.finish(state([1, 1]))
    assert [update.steps for update in link.given] == [10, 0]


def sample(generator: np.random.Generator, n: int) -> Counts:
    x = generator.normal(3.0, 2.0, (n, 2))
    return Counts(n, x.mean(0), np.square(x - x.mean(0)).sum(0))


def moments_of(counts: Counts) -> Moments:
    return Moments(*(jnp.asarray(part, jnp.float32) for part in counts))


def test_observations_are_merged_by_counts_and_each_counts_once() -> None:
    generator = np.random.default_rng(0)
    mine, more, others = sample(generator, 100), sample(generator, 50), sample(generator, 400)
    link = FakeLink(beta=0.0, normaliser=2)
    nothing = Counts(0.0, np.zeros(2), np.zeros(2))
    drive = driver(link, normaliser=nothing, obs=moments_of(nothing))
    drive(report(1, [1, 1], obs=moments_of(mine)))
    np.testing.assert_allclose(link.given[0].normaliser.mean, mine.mean, rtol=1e-5)
    link.answers.append(answer(1, [1, 1], normaliser=merge(mine, others)))
    reply = drive(report(2, [1, 1], obs=moments_of(merge(mine, more))))
    assert reply.weights is None and float(reply.statistics.count) == 400  # the others', and not its own again
    np.testing.assert_allclose(reply.statistics.mean, others.mean, rtol=1e-3)
    assert link.given[1].normaliser.samples == 50  # its own since then, and not the others'
    np.testing.assert_allclose(link.given[1].normaliser.mean, more.mean, rtol=1e-2)


def test_a_parent_that_lost_observations_adds_none() -> None:
    generator = np.random.default_rng(0)
    mine = sample(generator, 100)
    link = FakeLink(beta=0.0, normaliser=2)
    nothing = Counts(0.0, np.zeros(2), np.zeros(2))
    drive = driver(link, normaliser=nothing, obs=moments_of(nothing))
    drive(report(1, [1, 1], obs=moments_of(mine)))
    link.answers.append(answer(1, [1, 1], normaliser=sample(generator, 10)))
    assert drive(report(2, [1, 1], obs=moments_of(mine))) is None
    assert link.given[1].normaliser.samples == 0


def test_observations_count_once_where_the_weights_are_not_adopted() -> None:
    """In a round that goes on, the parent has the observations of the push, and its weights are the old ones."""
    generator = np.random.default_rng(0)
    mine, more, others = sample(generator, 100), sample(generator, 50), sample(generator, 400)
    link = FakeLink(beta=1.0, adopts="newer", normaliser=2)
    nothing = Counts(0.0, np.zeros(2), np.zeros(2))
    drive = driver(link, normaliser=nothing, obs=moments_of(nothing))
    drive(report(1, [1, 1], obs=moments_of(mine)))
    link.answers.append(answer(0, [0, 0], normaliser=merge(mine, others)))
    reply = drive(report(2, [1, 1], obs=moments_of(merge(mine, more))))
    assert reply.weights is None and float(reply.statistics.count) == 400
    assert link.given[1].normaliser.samples == 50


@pytest.mark.parametrize("others", [0, 30, 5000])
def test_statistics_stay_true_after_a_restart_of_the_parent(others: int) -> None:
    """The parent has lost some, and others have added as many or more: what both had once cannot be told from what is new."""
    generator = np.random.default_rng(0)
    link = FakeLink(beta=0.0, normaliser=2)
    saved, lost, mine = sample(generator, 20_000), sample(generator, 30), sample(generator, 100)
    drive = driver(link, normaliser=merge(saved, lost), obs=moments_of(merge(saved, lost)))
    now = merge(merge(saved, lost), mine)
    drive(report(1, [1, 1], obs=moments_of(now)))
    parent = merge(saved, mine)
    for version in range(2, 6):
        if others:
            parent = merge(parent, sample(generator, others))
        link.answers.append(answer((1 << 20) + version, [1, 1], normaliser=parent))
        reply = drive(report(version, [1, 1], obs=moments_of(now)))
        if reply is not None:
            added = Counts(*(np.asarray(part, np.float64) for part in reply.statistics))
            now = merge(now, added)
        parent = merge(parent, link.given[-1].normaliser)
    for counts in (now, parent):
        np.testing.assert_allclose(counts.mean, [3.0, 3.0], atol=0.1)
        np.testing.assert_allclose(np.sqrt(counts.m2 / counts.samples), [2.0, 2.0], atol=0.05)
    assert parent.samples == 20_100 + 4 * others, "each observation since then counts once"
    assert now.samples == 20_130 + 3 * others


def test_moments_travel_where_they_are_asked_to_and_squares_stay_positive() -> None:
    link = FakeLink(beta=1.0)
    drive = driver(link, moments=True)
    drive(report(1, [1, 1], nu=[4.0, 4.0]))
    np.testing.assert_array_equal(link.given[0].moments["nu"], [4, 4])
    link.answers.append(answer(1, [1, 1], moments={"nu": np.array([0.0, 5.0], np.float32)}))
    reply = drive(report(2, [1, 1], nu=[1.0, 6.0]))
    np.testing.assert_array_equal(reply.leaves["moments/nu/w"], [0.0, 7.0])  # 1 + (0 - 4) would be negative
    assert reply.weights is None


def test_the_last_push_of_a_run_does_not_repeat_the_open_one() -> None:
    """The answer to the open push arrives only after the run: the last push is what was learnt since that push."""
    generator = np.random.default_rng(0)
    before, new, others = sample(generator, 100), sample(generator, 50), sample(generator, 400)
    nothing = Counts(0.0, np.zeros(2), np.zeros(2))
    link = FakeLink(takes="delta", beta=1.0, normaliser=2)
    drive = driver(link, normaliser=nothing, obs=moments_of(nothing))
    drive(report(1, [1, 1], obs=moments_of(before)))
    drive(report(2, [3, 3], obs=moments_of(merge(before, new))))
    link.answers.append(answer(1, [10, 10], normaliser=merge(before, others)))
    drive.finish(state([3, 3], moments_of(merge(before, new))))
    assert len(link.given) == 2
    np.testing.assert_array_equal(link.given[1].vector, [2, 2])
    assert link.given[1].base == 1 and link.given[1].steps == 10
    assert link.given[1].normaliser.samples == 50


def test_the_last_push_is_left_out_while_an_answer_is_missing_and_made_after_a_refusal() -> None:
    link = FakeLink(takes="delta")
    drive = driver(link)
    drive(report(1, [1, 1]))
    drive(report(2, [2, 2]))
    drive.finish(state([2, 2]))
    assert len(link.given) == 1
    link = FakeLink(takes="delta")
    drive = driver(link)
    drive(report(1, [1, 1]))
    drive(report(2, [2, 2]))
    link.answers.append(Refusal(wire.Refused(reason="base", message="not yet", fatal=False)))
    drive.finish(state([2, 2]))
    np.testing.assert_array_equal(link.given[1].vector, [2, 2])
    assert link.given[1].steps == 20
