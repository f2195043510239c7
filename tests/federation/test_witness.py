"""What the witnesses of pushes find: logs with one fault each. Otherwise the tests that rely on them could not fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from witness import Lineage, read


def push(sequence: int, what: str, child: str = "one") -> dict[str, Any]:
    return {"child": child, "sequence": sequence, "steps": 10, "what": what}


def restored(pushes: int, sequence: int, steps: int | None = None) -> dict[str, Any]:
    return {"children": {"one": {"pushes": pushes, "sequence": sequence, "steps": steps or 10 * pushes}}}


def test_a_restart_with_gaps_and_lost_pushes_is_in_order() -> None:
    lineage = Lineage()
    lineage.take([push(1, "a"), push(2, "b"), restored(1, 1), push(3, "c"), push(4, "b")])
    lineage.restored(restored(3, 4)["children"])
    assert [one.what for one in lineage.pushes["one"]] == ["a", "c", "b"], "b was lost, and counts once"
    assert lineage.check_confirmed([push(1, "a"), push(2, "b")]) == 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([push(1, "a"), push(5, "a"), restored(2, 5)], "applied twice"),  # sequence >= pushes does not see it
        ([push(2, "a"), push(1, "b"), restored(2, 1)], "not increasing"),
        ([push(1, "a"), restored(2, 7)], "2 pushes counted, 1 applied"),
        ([push(1, "a"), push(2, "b"), restored(2, 1)], "sequence number"),
        ([push(1, "a"), restored(1, 1, 20)], "steps"),
    ],
)
def test_faults_are_found(lines: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        Lineage().take(lines)


def test_confirmations_of_nothing_and_repeated_ones_are_found() -> None:
    lineage = Lineage()
    lineage.take([push(1, "a")])
    with pytest.raises(AssertionError, match="never was"):
        lineage.check_confirmed([push(1, "b")])
    with pytest.raises(AssertionError, match="confirmed twice"):
        lineage.check_confirmed([push(1, "a"), push(1, "a")])


def test_a_line_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"child": "one"}\n{"chi')
    assert read(tmp_path / "log") == [{"child": "one"}] and read(tmp_path / "none") == []
