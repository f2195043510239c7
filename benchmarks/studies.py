"""Studies: many processes on one journal, and the time that a study adds to its trials."""

from __future__ import annotations

from typing import Any

import rooms
from shoal_runs import PYTHON
from targets import Result, Target


def journal(quick: bool) -> Result:
    """HyperTrick in a plain Optuna study: 32 processes on one journal, each with a report every 0.5 s. Also with eight of them
    killed half-way, whose trials a lease returns to the queue, and with processes killed that hold the journal's lock."""
    seconds = ["--seconds", "15" if quick else "60"]
    cases = {"plain": [], "8 workers killed": ["--kill", "8"], "lock holders killed": ["--kill-holder"]}
    found = {case: _load([*seconds, *words]) for case, words in cases.items()}
    plain, killed, held = found.values()
    rows = [{"who": "Shoal", "case": f"32 workers, {case}", **row} for case, row in found.items()]
    return Result(
        rows,
        [
            Target("p99 of report and decision, ms", plain.get("p99_ms"), "<= 100"),
            Target("errors, three cases", _sum(found, "errors"), "<= 0"),
            Target("decisions that do not replay, three cases", _sum(found, "mismatches"), "<= 0"),
            Target("trials lost when 8 workers are killed", killed.get("lost"), "<= 0"),
            Target("trials of killed workers that were finished by others", killed.get("requeued"), ">= 1"),
            Target("seconds that others wait after a lock holder's death", held.get("stall_s"), "<= 1"),
        ],
    )


def _load(words: list[str]) -> dict[str, Any]:
    return rooms.run_json([PYTHON, str(rooms.HERE / "journal_load.py"), *words], timeout=400)


def _sum(found: dict[str, dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in found.values()))


def tune_overhead(quick: bool) -> Result:
    """The time that `shoal tune` adds: a random study of 1,000 trials that take no time, and CartPole runs in a study beside the
    same runs without one."""
    script = str(rooms.HERE / "tune_overhead.py")
    instant = rooms.run_json([PYTHON, script, "instant", "--trials", "250" if quick else "1000"], timeout=600)
    runs = rooms.run_json([PYTHON, script, "runs", "--trials", "3" if quick else "10"], timeout=900)
    rows = [
        {"who": "Shoal", "case": "trials that take no time", **instant},
        {"who": "Shoal", "case": "CartPole, 40,000 steps, one worker", **runs},
    ]
    bound = 15 * instant["trials"] / 1000
    return Result(
        rows,
        [
            Target(f"seconds of a study of {instant['trials']:,} instant trials", instant["seconds"], f"<= {bound:g}"),
            Target("seconds that a study adds to a run", runs["overhead_s"], "<= 0.3"),
        ],
    )
