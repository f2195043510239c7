"""What is drawn, how often, and with which weight: against the paper's formulas and cpprb's own tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from shoal.core.algorithm import Replay
from shoal.replay import Sampler, make_sampler
from shoal.replay.samplers import EPSILON
from shoal.replay.sum_tree import SumTree

ALPHA, BETA, N = 0.7, 0.5, 60
SIZES = np.array([N])


def make(kind: str, rings: int = 1, slots: int = 100, **settings: Any) -> Sampler:
    how = {"uniform": {"kind": "uniform"}, "seeded": {"kind": "prioritized"}}
    chosen = how.get(kind, {"kind": "prioritized", "sampler": "cpprb"})
    replay = Replay(length=8, batch=16, every=4, capacity=slots, warmup=0, alpha=ALPHA, **chosen, **settings)  # type: ignore[arg-type]
    return make_sampler(replay, rings, slots)


def errors(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=N) * np.where(np.arange(N) % 3, -1, 1)


def probabilities(td: np.ndarray) -> np.ndarray:
    """P(i) = p_i^alpha / sum_k p_k^alpha with p_i = |delta_i| + epsilon (equation 1)."""
    p = np.array([(abs(delta) + EPSILON) ** ALPHA for delta in td])
    return np.asarray(p / p.sum())


def chi_square(drawn: np.ndarray, expected: np.ndarray) -> float:
    """The p-value of these frequencies. Stratified draws vary less than independent ones, so only one side is a test."""
    seen = np.bincount(drawn.ravel(), minlength=len(expected))
    e = expected * drawn.size
    return float(chi2.sf((np.square(seen - e) / e).sum(), len(expected) - 1))


class TestUniform:
    @pytest.mark.parametrize("replacement", [True, False])
    def test_frequencies(self, replacement: bool) -> None:
        drawn = make("uniform", replacement=replacement).draw(np.random.default_rng(0), SIZES, 2000, 16, BETA)
        assert drawn.indices.shape == (2000, 16) and (drawn.weights == 1).all()
        assert chi_square(drawn.indices, np.full(N, 1 / N)) > 0.01

    def test_rings_that_are_filled_unevenly(self) -> None:
        sizes = np.array([10, 0, 30, 5])
        drawn = make("uniform", rings=4).draw(np.random.default_rng(0), sizes, 1000, 16, BETA).indices
        filled = np.concatenate([ring * 100 + np.arange(size) for ring, size in enumerate(sizes)])
        assert set(drawn.ravel().tolist()) == set(filled.tolist())
        place = np.searchsorted(filled, drawn)
        assert chi_square(place, np.full(45, 1 / 45)) > 0.01


class TestWithoutReplacement:
    def test_rows_of_little_priority_are_not_waited_for(self) -> None:
        """Of 1,000 rows ten hold all but 1e-5 of the priority: the other six of a minibatch are drawn in one pass."""
        sampler = make("seeded", slots=1000, replacement=False)
        sampler.note(np.arange(1000))
        sampler.feedback(np.arange(1000), np.where(np.arange(1000) < 10, 1.0, 0.0))
        drawn = sampler.draw(np.random.default_rng(0), np.array([1000]), 200, 16, BETA).indices
        assert all(len(set(batch)) == 16 for batch in drawn) and all({*range(10)} <= set(batch) for batch in drawn)
        others = drawn[drawn >= 10] - 10
        assert len(others) == 200 * 6 and others.max() < 990
        assert chi_square(others // 99, np.full(10, 0.1)) > 0.01, "the rest are equally likely"

    def test_the_pass_never_draws_an_empty_slot(self) -> None:
        sampler = make("seeded", slots=1000, replacement=False)
        sampler.note(np.arange(20))
        sampler.feedback(np.arange(20), np.where(np.arange(20) < 2, 1.0, 0.0))
        drawn = sampler.draw(np.random.default_rng(0), np.array([20]), 50, 16, BETA).indices
        assert drawn.max() < 20 and all(len(set(batch)) == 16 for batch in drawn)


def test_an_error_that_is_not_finite_is_refused() -> None:
    sampler = make("seeded")
    sampler.note(np.arange(N))
    for bad in (np.nan, np.inf):
        with pytest.raises(AssertionError, match="not sound"):
            sampler.feedback(np.array([7]), np.array([bad]))
    drawn = sampler.draw(np.random.default_rng(0), SIZES, 100, 16, BETA).indices
    assert len(set(drawn.ravel().tolist())) == N, "and all rows are drawn as before"


@pytest.mark.parametrize("kind", ["seeded", "cpprb"])
class TestPrioritized:
    def test_frequencies_follow_the_priorities(self, kind: str) -> None:
        sampler, td = make(kind), errors()
        sampler.note(np.arange(N))
        sampler.feedback(np.arange(N), td)
        drawn = sampler.draw(np.random.default_rng(0), SIZES, 4000, 16, BETA)
        assert chi_square(drawn.indices, probabilities(td)) > 0.01
        assert chi_square(drawn.indices, np.full(N, 1 / N)) < 1e-6, "the test can tell"

    def test_weights_are_those_of_the_paper(self, kind: str) -> None:
        """w_i = (N P(i))^-beta / max_j w_j (section 3.4), the largest of the whole buffer."""
        sampler, td = make(kind), errors()
        sampler.note(np.arange(N))
        sampler.feedback(np.arange(N), td)
        drawn = sampler.draw(np.random.default_rng(0), SIZES, 50, 16, BETA)
        w = (N * probabilities(td)) ** -BETA
        np.testing.assert_allclose(drawn.weights, (w / w.max())[drawn.indices], rtol=1e-4)

    def test_new_rows_get_the_largest_priority(self, kind: str) -> None:
        sampler = make(kind)
        sampler.note(np.arange(40))
        sampler.feedback(np.arange(40), np.linspace(0.1, 5.0, 40))
        sampler.feedback(np.arange(40), np.linspace(0.1, 2.0, 40))
        sampler.note(np.arange(40, N))
        td = np.concatenate([np.linspace(0.1, 2.0, 40), np.full(20, 5.0)])
        drawn = sampler.draw(np.random.default_rng(0), SIZES, 4000, 16, BETA)
        assert chi_square(drawn.indices, probabilities(td)) > 0.01

    def test_an_overwritten_row_forgets_its_priority(self, kind: str) -> None:
        sampler = make(kind)
        sampler.note(np.arange(N))
        sampler.feedback(np.arange(N), np.full(N, 1e-3))
        sampler.note(np.array([7]))
        drawn = sampler.draw(np.random.default_rng(0), SIZES, 100, 16, BETA).indices
        expected = probabilities(np.where(np.arange(N) == 7, 1.0, 1e-3))
        assert abs((drawn == 7).mean() - expected[7]) < 0.05

    def test_empty_slots_are_never_drawn(self, kind: str) -> None:
        sampler = make(kind, rings=3)
        filled = np.concatenate([np.arange(5), 200 + np.arange(7)])
        sampler.note(filled)
        drawn = sampler.draw(np.random.default_rng(0), np.array([5, 0, 7]), 200, 16, BETA)
        assert set(drawn.indices.ravel().tolist()) == set(filled.tolist())

    def test_the_last_of_two_errors_counts(self, kind: str) -> None:
        sampler = make(kind)
        sampler.note(np.arange(N))
        sampler.feedback(np.arange(N), np.ones(N))
        sampler.feedback(np.array([[3, 3], [3, 5]]), np.array([[9.0, 8.0], [2.0, 1.0]]))
        td = np.where(np.arange(N) == 3, 2.0, 1.0)
        drawn = sampler.draw(np.random.default_rng(0), SIZES, 4000, 16, BETA)
        assert chi_square(drawn.indices, probabilities(td)) > 0.01

    def test_a_snapshot_goes_on(self, kind: str) -> None:
        one, other, td = make(kind), make(kind), errors()
        one.note(np.arange(N))
        one.feedback(np.arange(N), td)
        other.restore(one.snapshot())
        other.note(np.array([0]))  # the largest priority is remembered too
        td[0] = max(1.0, float(np.abs(td).max()))
        drawn = other.draw(np.random.default_rng(0), SIZES, 4000, 16, BETA)
        assert chi_square(drawn.indices, probabilities(td)) > 0.01


@pytest.mark.parametrize("kind", ["uniform", "seeded"])
class TestSeeds:
    def sampler(self, kind: str, **settings: Any) -> Sampler:
        sampler = make(kind, **settings)
        sampler.note(np.arange(N))
        sampler.feedback(np.arange(N), errors())
        return sampler

    @pytest.mark.parametrize("replacement", [True, False])
    def test_the_same_seed_draws_the_same(self, kind: str, replacement: bool) -> None:
        one, other = (self.sampler(kind, replacement=replacement) for _ in range(2))
        draws = [
            s.draw(np.random.default_rng(seed), SIZES, 4, 16, BETA) for s, seed in ((one, 1), (other, 1), (one, 2))
        ]
        assert draws[0].indices.tobytes() == draws[1].indices.tobytes() != draws[2].indices.tobytes()

    def test_without_replacement_no_row_is_twice_in_a_minibatch(self, kind: str) -> None:
        drawn = self.sampler(kind, replacement=False).draw(np.random.default_rng(0), SIZES, 200, 16, BETA).indices
        assert all(len(set(row)) == 16 for row in drawn.tolist())
        free = self.sampler(kind, replacement=True).draw(np.random.default_rng(0), SIZES, 200, 16, BETA).indices
        assert any(len(set(row)) < 16 for row in free.tolist())


def test_without_replacement_is_drawing_from_what_is_left() -> None:
    """Pairs of three rows, against the sum over orders: P(i then j) = p_i p_j / (1 - p_i)."""
    sampler = make("seeded", replacement=False)
    sampler.note(np.arange(3))
    td = np.array([1.0, 2.0, 6.0])
    sampler.feedback(np.arange(3), td)
    drawn = sampler.draw(np.random.default_rng(0), np.array([3]), 20_000, 2, BETA).indices
    p = probabilities(td)
    for i, j in ((0, 1), (1, 0), (0, 2), (2, 1)):
        share = ((drawn[:, 0] == i) & (drawn[:, 1] == j)).mean()
        assert share == pytest.approx(p[i] * p[j] / (1 - p[i]), abs=0.012)


def test_a_minibatch_takes_one_row_of_each_share() -> None:
    sampler = make("seeded")
    sampler.note(np.arange(16))
    drawn = sampler.draw(np.random.default_rng(0), np.array([16]), 50, 16, BETA).indices
    assert (np.sort(drawn, axis=1) == np.arange(16)).all()


class TestSumTree:
    @pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
    def test_against_a_cumulative_sum(self, size: int) -> None:
        rng, tree, leaves = np.random.default_rng(size), SumTree(size), np.zeros(size)
        for part in (size, 1, max(1, size // 50)):
            indices, weights = rng.integers(0, size, part), rng.integers(0, 9, part).astype(float)
            for i, w in zip(indices, weights, strict=True):
                leaves[i] = w
            tree.set(indices, weights)
        leaves[0] += 1
        tree.set(np.array([0]), leaves[:1])
        assert tree.total == leaves.sum() and tree.least() == leaves[leaves > 0].min()
        shares = rng.random(300)
        expected = [int(np.searchsorted(np.cumsum(leaves), share * leaves.sum(), side="right")) for share in shares]
        assert tree.find(shares).tolist() == expected

    @pytest.mark.parametrize("count", [1, 3, 50, 5000])
    def test_empty_leaves_are_never_found(self, count: int) -> None:
        """Also with weights of very different size, whose sums round, and shares as near to 1 as there are."""
        rng, tree = np.random.default_rng(count), SumTree(3000)
        weights = np.where(rng.random(3000) < 0.9, 0.0, 10.0 ** rng.integers(-12, 12, 3000))
        weights[-700:] = 0.0
        tree.set(np.arange(3000), weights)
        shares = rng.random(count)
        shares[0] = np.nextafter(1.0, 0.0)
        found = tree.find(shares)
        assert (weights[found] > 0).all()
        ends = np.cumsum(weights) / weights.sum()
        assert np.all(shares <= ends[found] + 1e-12) and np.all(
            shares >= ends[found] - weights[found] / weights.sum() - 1e-12
        )

    def test_several_changes_before_a_search_count_like_one(self) -> None:
        rng, one, other = np.random.default_rng(0), SumTree(200_000), SumTree(200_000)
        for _ in range(5):
            indices, weights = rng.integers(0, 200_000, 40), rng.random(40)
            for tree in (one, other):
                tree.set(indices, weights)
            assert other.total > 0  # which brings its inner nodes up to date
        shares = rng.random(500)
        assert one.total == other.total and one.find(shares).tobytes() == other.find(shares).tobytes()

    def test_the_same_leaves_give_the_same_tree(self) -> None:
        rng = np.random.default_rng(0)
        weights, one, other = rng.random(500), SumTree(500), SumTree(500)
        one.set(np.arange(500), weights)
        for i in rng.permutation(500):
            other.set(np.array([i]), rng.random(1))
            other.set(np.array([i]), weights[i : i + 1])
        assert one.total == other.total
        shares = rng.random(1000)
        assert one.find(shares).tobytes() == other.find(shares).tobytes()

    def test_the_smallest_is_known_whatever_is_set(self) -> None:
        rng, tree, leaves = np.random.default_rng(0), SumTree(40), np.zeros(40)
        assert tree.least() == np.inf
        for _ in range(300):
            indices, weights = rng.integers(0, 40, 3), rng.integers(0, 20, 3).astype(float)
            for i, w in zip(indices, weights, strict=True):
                leaves[i] = w
            tree.set(indices, weights)
            assert tree.least() == leaves.min(where=leaves > 0, initial=np.inf)

    @pytest.mark.parametrize("count", [3, 3000])
    def test_a_large_tree_by_paths_or_as_a_whole(self, count: int) -> None:
        size = 200_000
        rng, tree, leaves = np.random.default_rng(count), SumTree(size), np.zeros(size)
        for _ in range(3):
            indices = rng.integers(0, size, count)
            leaves[indices] = weights = indices % 9.0
            tree.set(indices, weights)
        assert tree.total == leaves.sum()

    def test_what_weighs_nothing_is_never_found(self) -> None:
        tree = SumTree(8)
        tree.set(np.array([2, 5]), np.array([0.1, 0.2]))
        assert set(tree.find(np.linspace(0, np.nextafter(1, 0), 999)).tolist()) == {2, 5}
