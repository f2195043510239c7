"""How good laws from few evaluations are, beside other ways to spend the same evaluations (`law_methods`).

    python benchmarks/laws.py KNOBS BUDGET [--seeds 5] [--methods A,B] [--functions A,B] [--again]
    python benchmarks/laws.py               # the table of what is kept, nothing measured

Each function has KNOBS knobs and as many conditions, its minimum moved by 0.2 along the knobs. The normalised regret is
(f(law) - f*) / (mean of f at random points - f*) over 64 conditions that no method has seen; f* is searched.

Every number is kept in `results/laws.json` as soon as it is measured, with the date and the commit, and is measured again only
with `--again`: a slice can be measured alone or beside others, and one that was stopped goes on. `results/laws.md` is the table,
and `results/laws.png` shows the regret against the evaluations: of `surrogate` within each run, of the other methods by runs with
a half, a quarter, ... of the budget, for the first seed.
`run.py --only law-regret` measures what is missing. Prints one JSON object: the slice.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from law_methods import METHODS, MOST_OF_PROCESS, Found
from scipy.stats import trim_mean

from shoal.core.errors import RunFailed
from shoal.optimize import Problem
from shoal.optimize.functions import FUNCTIONS, make
from shoal.optimize.judge import spread
from shoal.optimize.truth import refined
from shoal.studies.statistics import iqm

HELD_OUT = 64
HERE = Path(__file__).parent
KEPT, TABLE = HERE / "results" / "laws.json", HERE / "results" / "laws.md"
PICTURE = HERE / "results" / "laws.png"
LEAST = 60  # evaluations of the first point of a curve, at least
OURS = "surrogate", "policy"
Slice = dict[str, dict[str, dict[str, dict[str, Any]]]]  # function, method, seed: what was measured
PROMISED = {(1, 500): 0.01, (1, 2000): 0.001, (2, 2000): 0.05, (2, 20_000): 0.01, (3, 20_000): 0.05}
SIZES = [(knobs, budget) for knobs in (1, 2, 3) for budget in (500, 2000, 20_000)]


def case(knobs: int, budget: int) -> str:
    return f"{knobs} + {knobs} at {budget:,}"


def functions(knobs: int) -> list[str]:
    return [name for name, f in FUNCTIONS.items() if f.dims in (None, 2 * knobs)]


def kept() -> dict[str, Slice]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other process writes the results meanwhile: slices that are measured at the same time lose nothing."""
    with KEPT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace(path: Path, text: str) -> None:
    """Write beside and rename, so that a reader finds the old or the new text."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def measure(knobs: int, budget: int, seeds: int, names: list[str], methods: list[str], again: bool) -> Slice:
    """The slice, after what is missing of it has been measured and written."""
    commit = _said("git", "rev-parse", "--short", "HEAD")
    methods = [m for m in methods if m != "Gaussian process" or budget <= MOST_OF_PROCESS]
    for name in names:
        problem: Problem | None = None
        for method in methods:
            for seed in range(seeds):
                known = kept().get(case(knobs, budget), {}).get(name, {})
                if not again and any(
                    str(seed) in row for found, row in known.items() if found.split(", ")[0] == method
                ):
                    continue
                problem = problem or make(name, dims=2 * knobs, free=knobs, shift=0.2)
                new = one(problem, method, knobs, budget, seed)
                print(f"{case(knobs, budget)}, {name}, seed {seed}: {new}", file=sys.stderr, flush=True)
                with alone():
                    results = kept()
                    cell = results.setdefault(case(knobs, budget), {}).setdefault(name, {})
                    for found, row in new.items():
                        told = row | {"at": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": commit}
                        cell.setdefault(found, {})[str(seed)] = told
                    replace(KEPT, json.dumps(results, indent=1, sort_keys=True) + "\n")
                    replace(TABLE, table(results))
    return kept().get(case(knobs, budget), {})


def one(problem: Problem, method: str, knobs: int, budget: int, seed: int) -> dict[str, dict[str, Any]]:
    """What a method makes of the budget: the normalised regret of each kind of answer that it gives."""
    conditions = spread(knobs, 1000, HELD_OUT)
    best = refined(problem, conditions)
    random = float(np.nanmean(problem.evaluate(problem.sample(np.random.default_rng(0), 4096)))) - float(best.mean())

    def regret(answers: np.ndarray) -> float:
        return float(np.mean(problem.evaluate(answers) - best)) / random

    curve: list[tuple[int, float]] = []
    looks = {"look": lambda n, law: curve.append((n, regret(law.answers(conditions))))} if method == "surrogate" else {}
    began = time.process_time()
    try:
        found = _found(problem, method, budget, seed, **looks)
    except RunFailed as error:
        return {method: {"regret": None, "error": str(error)}}
    took = time.process_time() - began
    rows: dict[str, dict[str, Any]] = {
        who: {"regret": regret(answer(conditions)), "cpu_s": round(took, 2)} for who, answer in found.items()
    }
    if not rows:
        return {method: {"regret": None, "error": "the budget is too small"}}
    curves = {"surrogate": curve} if looks else {}
    if not looks and seed == 0:
        curves = {who: [] for who in rows}
        for less in _halves(budget):
            with contextlib.suppress(RunFailed):
                for who, answer in _found(problem, method, less, seed).items():
                    curves.setdefault(who, []).append((less, regret(answer(conditions))))
    for who, points in curves.items():
        rows[who]["curve"] = [(n, value) for n, value in points if n < budget] + [(budget, rows[who]["regret"])]
    return rows


def _found(problem: Problem, method: str, budget: int, seed: int, **more: Any) -> Found:
    with tempfile.TemporaryDirectory() as temporary:
        return METHODS[method](problem, budget, seed, Path(temporary) / "run", **more)


def _halves(budget: int) -> list[int]:
    """Half of the budget, a quarter, and so on, the smallest first."""
    found = []
    while (budget := budget // 2) >= LEAST:
        found.append(budget)
    return found[::-1]


def regrets(cell: dict[str, dict[str, Any]]) -> list[float]:
    return [row["regret"] for _, row in sorted(cell.items()) if row["regret"] is not None]


def summary(found: Slice) -> list[dict[str, Any]]:
    """For each method that has all functions of the slice, the interquartile mean over functions and seeds with its 95 % interval,
    by resampling seeds."""
    rows = []
    for method in dict.fromkeys(method for cells in found.values() for method in cells):
        lists = [regrets(cells[method]) for cells in found.values() if method in cells]
        lists = [values for values in lists if values]
        if len(lists) < len(found):  # a mean over other functions could not be compared
            continue
        rng = np.random.default_rng(0)
        again = np.concatenate([rng.choice(values, (1000, len(values))) for values in lists], axis=1)
        low, high = np.quantile(trim_mean(again, 0.25, axis=1), [0.025, 0.975])
        rows.append(
            {
                "who": method,
                "iqm": iqm([v for values in lists for v in values]),
                "ci": [float(low), float(high)],
                "functions": len(lists),
                "seeds": min(map(len, lists)),
            }
        )
    return rows


def behind(found: Slice) -> list[str]:
    """The functions on which another method has the lower mean regret, with its name; `surrogate` must be measured there."""
    lost = []
    for name, cells in found.items():
        means = {method: float(np.mean(values)) for method, cell in cells.items() if (values := regrets(cell))}
        best = min((m for m in means if m not in OURS), key=lambda m: means[m], default=None)
        if "surrogate" in means and best is not None and means["surrogate"] > means[best]:
            lost.append(f"{name} ({best} {means[best]:.2g}, surrogate {means['surrogate']:.2g})")
    return lost


def table(results: dict[str, Slice]) -> str:
    """One row for each method, one column for each slice; below, the functions one by one."""
    sizes = [size for size in SIZES if case(*size) in results]
    rows = {size: {row["who"]: row for row in summary(results[case(*size)])} for size in sizes}
    who = list(dict.fromkeys(m for size in sizes for cells in results[case(*size)].values() for m in cells))
    lines = [
        "# Laws from few evaluations",
        "",
        "Normalised regret, (f(law) - f*) / (mean of random - f*), over 64 held-out conditions:",
    ]
    lines += [
        "interquartile mean over functions and seeds, its 95 % interval, functions x seeds. Written by `benchmarks/laws.py`.",
        f"The Gaussian process is left out above {MOST_OF_PROCESS:,} evaluations, which would take it hours for each law.",
        "",
        "![regret against evaluations](laws.png)",
        "",
    ]
    lines += ["| method | " + " | ".join(case(*size) for size in sizes) + " |", "| --- |" + " --- |" * len(sizes)]
    for method in who:
        shown = []
        for size in sizes:
            row = rows[size].get(method)
            interval = "" if row is None else f"{row['ci'][0]:.2g} to {row['ci'][1]:.2g}"
            shown.append("" if row is None else f"{row['iqm']:.2g} ({interval}; {row['functions']} x {row['seeds']})")
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    goals = [f"{PROMISED[size]:g}" if size in PROMISED else "" for size in sizes]
    seeds = [f"{row['functions']} x {row['seeds']}" if (row := rows[s].get("surrogate")) else "" for s in sizes]
    lines += ["| goal for surrogate | " + " | ".join(goals) + " |", "| functions x seeds | " + " | ".join(seeds) + " |"]
    for size in sizes:
        found = results[case(*size)]
        lost = behind(found)
        lines += [
            "",
            f"## {case(*size)}",
            "",
            f"Behind another method on {len(lost)} of {len(found)}: {', '.join(lost) or 'none'}.",
            "",
        ]
        lines += ["| function | " + " | ".join(who) + " |", "| --- |" + " --- |" * len(who)]
        for name, cells in found.items():
            means = [f"{np.mean(v):.2g}" if (v := regrets(cells.get(method, {}))) else "" for method in who]
            lines.append(f"| {name} | " + " | ".join(means) + " |")
    return "\n".join(lines) + "\n"


def picture(results: dict[str, Slice], path: Path) -> None:
    """Draw the median regret over functions and seeds against the evaluations, one panel for each number of knobs."""
    from matplotlib.figure import Figure

    largest = {knobs: (knobs, budget) for knobs, budget in SIZES if case(knobs, budget) in results}
    if not largest:
        return
    figure = Figure(figsize=(5 * len(largest) + 2.5, 3.8), layout="constrained")
    panels: Any = figure.subplots(1, len(largest), sharey=True, squeeze=False)
    for size, axes in zip(largest.values(), panels[0], strict=True):
        for method, points in curves_of(results[case(*size)]).items():
            own = method == "surrogate"
            axes.plot(*zip(*points, strict=True), label=method, lw=2.6 if own else 1.2, marker=".")
        axes.set(xscale="log", yscale="log", xlabel="evaluations", title=f"{size[0]} + {size[0]}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel("normalised regret, median")
    panels[0, -1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=120)


def curves_of(found: Slice) -> dict[str, list[tuple[float, float]]]:
    """For each method, (evaluations, median regret). Runs look at slightly different numbers: near ones are one point."""
    points: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for cells in found.values():
        for method, seeds in cells.items():
            for row in seeds.values():
                for n, value in row.get("curve", ()):
                    points.setdefault(method, {}).setdefault(round(np.log2(n)), []).append((n, value))
    return {
        method: [(float(np.median([n for n, _ in at])), _positive(at)) for _, at in sorted(doublings.items())]
        for method, doublings in points.items()
    }


def _positive(points: list[tuple[int, float]]) -> float:
    """The median of values, not below what a logarithmic axis shows."""
    return max(1e-12, float(np.median([value for _, value in points])))


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("knobs", type=int, nargs="?")
    parser.add_argument("budget", type=int, nargs="?")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--functions")
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    if args.knobs is None or args.budget is None:
        with alone():
            replace(TABLE, table(kept()))
        picture(kept(), PICTURE)
        return
    names = args.functions.split(",") if args.functions else functions(args.knobs)
    found = measure(args.knobs, args.budget, args.seeds, names, args.methods.split(","), args.again)
    picture(kept(), PICTURE)
    print(json.dumps({"cells": found, "rows": summary(found), "behind": behind(found)}))


if __name__ == "__main__":
    main()
