"""Rings: the newest rows stay, and a reader is told what was overwritten under its eyes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.record import Field, Record
from shoal.replay import Rings

ROW = Record((Field("obs", (2,), "float32"), Field("number", (), "int64")))


def rings(count: int = 2, slots: int = 5) -> Rings:
    return Rings.over(Rings.record(ROW, count, slots).empty())


def rows(*numbers: int) -> dict[str, np.ndarray]:
    return {
        "obs": np.array([[n, -n] for n in numbers], np.float32).reshape(-1, 2),
        "number": np.array(numbers, np.int64),
    }


def numbers(pool: Rings, ring: int) -> list[int]:
    """What is there, whatever the order."""
    indices = ring * pool.slots + np.arange(pool.sizes()[ring])
    got, whole = pool.read(indices, pool.counts())
    assert whole.all() and (got["obs"][:, 0] == got["number"]).all() and (got["obs"][:, 1] == -got["number"]).all()
    return sorted(got["number"].tolist())


def test_the_newest_rows_stay() -> None:
    pool = rings()
    for start in range(0, 12, 3):
        pool.write(0, rows(*range(start, start + 3)))
        assert numbers(pool, 0) == list(range(max(0, start - 2), start + 3))
    assert pool.counts().tolist() == [12, 0] and pool.sizes().tolist() == [5, 0]


@pytest.mark.parametrize("count", [5, 6, 13])
def test_of_more_rows_than_slots_the_last_stay(count: int) -> None:
    pool = rings()
    pool.write(1, rows(100, 101))
    pool.write(1, rows(*range(count)))
    assert numbers(pool, 1) == list(range(count - 5, count))
    assert pool.counts().tolist() == [0, count + 2]


def test_row_number_i_lies_in_slot_i_modulo_slots() -> None:
    pool = rings()
    pool.write(1, rows(*range(4)))
    pool.write(1, rows(*range(4, 8)))
    got, _ = pool.read(5 + np.arange(5), pool.counts())
    assert got["number"].tolist() == [5, 6, 7, 3, 4]


def test_nothing_written_is_nothing() -> None:
    pool = rings()
    pool.write(0, rows())
    assert pool.counts().tolist() == [0, 0]


def test_a_reader_is_told_what_was_overwritten_since_it_looked() -> None:
    pool = rings()
    pool.write(0, rows(*range(5)))
    pool.write(1, rows(*range(5)))
    counts = pool.counts()
    pool.write(0, rows(5, 6))
    _, whole = pool.read(np.arange(10).reshape(2, 5), counts)
    assert whole.tolist() == [[False, False, True, True, True], [True] * 5]
    pool.write(0, rows(*range(7, 20)))
    _, whole = pool.read(np.arange(10), counts)
    assert whole.tolist() == [False] * 5 + [True] * 5


def test_a_write_that_has_begun_counts_as_done_to_readers() -> None:
    """A writer that is half way, or died there: the rows it may have touched are not handed out as whole."""
    memory = Rings.record(ROW, 1, 5).empty()
    pool, other = Rings.over(memory), Rings.over(memory)
    pool.write(0, rows(*range(5)))

    class Dies(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "number":
                raise KeyError(name)
            return super().__getitem__(name)

    with pytest.raises(KeyError):
        pool.write(0, Dies(rows(5, 6)))
    counts = other.counts()
    assert counts.tolist() == [5]
    _, whole = other.read(np.arange(5), counts)
    assert whole.tolist() == [False, False, True, True, True]
    pool.write(0, rows(7, 8))  # its successor goes on in the same place
    assert numbers(other, 0) == [2, 3, 4, 7, 8]


def test_what_is_read_is_a_copy() -> None:
    pool = rings()
    given = rows(1, 2)
    pool.write(0, given)
    given["obs"][:] = 9
    got, _ = pool.read(np.array([0]), pool.counts())
    got["obs"][:] = 7
    assert numbers(pool, 0) == [1, 2]


@pytest.mark.parametrize("count", [3, 5, 8])
def test_a_snapshot_goes_on_as_the_first_would_have(count: int) -> None:
    one, other = rings(), rings()
    one.write(1, rows(*range(count)))
    saved = one.snapshot()
    assert saved["rows/number"].shape[1] == min(count, 5), "what is empty is not saved"
    other.restore(saved)
    for pool in (one, other):
        pool.write(1, rows(50, 51))
    assert numbers(one, 1) == numbers(other, 1) and one.counts().tolist() == other.counts().tolist()


def killed_write(pool: Rings, ring: int, new: dict[str, np.ndarray]) -> None:
    """A write whose writer dies between two arrays."""

    class Dies(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "number":
                raise KeyError(name)
            return super().__getitem__(name)

    with pytest.raises(KeyError):
        pool.write(ring, Dies(new))


def test_a_shorter_write_of_a_successor_leaves_the_rest_of_a_killed_one_marked() -> None:
    pool = rings(1)
    pool.write(0, rows(*range(5)))
    killed_write(pool, 0, rows(5, 6, 7))
    pool.write(0, rows(8))  # covers one of the three rows that the dead writer may have touched
    got, whole = pool.read(np.arange(5), pool.counts())
    assert whole.tolist() == [True, False, False, True, True] and got["number"][whole].tolist() == [8, 3, 4]
    assert (got["obs"][whole, 0] == got["number"][whole]).all()
    pool.write(0, rows(9, 10))
    assert numbers(pool, 0) == [3, 4, 8, 9, 10], "passed: all are whole again"


def test_a_snapshot_marks_what_was_not_whole() -> None:
    pool = rings(1)
    pool.write(0, rows(*range(5)))
    killed_write(pool, 0, rows(5, 6))
    again = rings(1)
    again.restore(pool.snapshot())
    assert again.read(np.arange(5), again.counts())[1].tolist() == [False, False, True, True, True]


def test_what_is_overwritten_while_a_snapshot_is_taken_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = rings(1)
    pool.write(0, rows(*range(5)))
    counts = pool.counts

    def meanwhile() -> np.ndarray:
        before = counts()
        pool.write(0, rows(5, 6))
        return before

    monkeypatch.setattr(pool, "counts", meanwhile)
    saved = pool.snapshot()
    again = rings(1)
    again.restore(saved)
    got, whole = again.read(np.arange(5), again.counts())
    assert again.counts().tolist() == [5] and sorted(got["number"][whole].tolist()) == [2, 3, 4]


@pytest.mark.parametrize(("count", "slots"), [(3, 4), (1, 10), (2, 3), (1, 4)])
def test_a_snapshot_of_other_rings_is_dealt_out_the_newest_rows_first(count: int, slots: int) -> None:
    pool = rings(2, 5)
    pool.write(0, rows(*range(7)))
    pool.write(1, rows(*range(100, 103)))
    again = rings(count, slots)
    assert pool.fits(pool.snapshot()) and not again.fits(pool.snapshot())
    again.restore(pool.snapshot())
    held = sorted(n for ring in range(count) for n in numbers(again, ring))
    newest = [2, 3, 4, 100, 5, 101, 6, 102]
    assert held == sorted(newest[-count * slots :])
    sizes = again.sizes()
    assert sizes.max() - sizes.min() <= 1
    again.write(0, rows(50))
    assert 50 in numbers(again, 0)


def test_rows_that_are_not_whole_are_not_dealt_out() -> None:
    pool = rings(1, 5)
    pool.write(0, rows(*range(5)))
    killed_write(pool, 0, rows(5, 6))
    again = rings(2, 5)
    again.restore(pool.snapshot())
    assert sorted(numbers(again, 0) + numbers(again, 1)) == [2, 3, 4]
