"""How good laws from few evaluations are, beside other ways to spend the same evaluations (`law_methods`).

    python benchmarks/laws.py KNOBS BUDGET [--seeds 5] [--methods A,B] [--functions A,B] [--again]
    python benchmarks/laws.py               # the table of what is kept, nothing measured

Each function has KNOBS knobs and as many conditions, its minimum moved by 0.2 along the knobs. The normalised regret is
(f(law) - f*) / (mean of f at random points - f*) over 64 conditions that no method has seen; f* is searched.

Every number is kept in `results/laws.json` as soon as it is measured, with the date and the commit, and is measured again only
with `--again`: a slice can be measured alone, and one that was stopped goes on. `results/laws.md` is the table.
`run.py --only law-regret` measures what is missing. Prints one JSON object: the slice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from law_methods import METHODS
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


def measure(knobs: int, budget: int, seeds: int, names: list[str], methods: list[str], again: bool) -> Slice:
    """The slice, after what is missing of it has been measured and written."""
    commit = _said("git", "rev-parse", "--short", "HEAD")
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
                results = kept()
                cell = results.setdefault(case(knobs, budget), {}).setdefault(name, {})
                for found, row in new.items():
                    told = row | {"at": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": commit}
                    cell.setdefault(found, {})[str(seed)] = told
                KEPT.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
                TABLE.write_text(table(results))
    return kept().get(case(knobs, budget), {})


def one(problem: Problem, method: str, knobs: int, budget: int, seed: int) -> dict[str, dict[str, Any]]:
    """What a method makes of the budget: the normalised regret of each kind of answer that it gives."""
    conditions = spread(knobs, 1000, HELD_OUT)
    best = refined(problem, conditions)
    random = float(np.nanmean(problem.evaluate(problem.sample(np.random.default_rng(0), 4096)))) - float(best.mean())
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            answers = METHODS[method](problem, budget, seed, Path(temporary) / "run")
        except RunFailed as error:
            return {method: {"regret": None, "error": str(error)}}
        took = time.process_time() - began
        return {
            found: {
                "regret": float(np.mean(problem.evaluate(answer(conditions)) - best)) / random,
                "cpu_s": round(took, 2),
            }
            for found, answer in (answers or {method: None}).items()
            if answer is not None
        } or {method: {"regret": None, "error": "the budget is too small"}}


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
        TABLE.write_text(table(kept()))
        return
    names = args.functions.split(",") if args.functions else functions(args.knobs)
    found = measure(args.knobs, args.budget, args.seeds, names, args.methods.split(","), args.again)
    print(json.dumps({"cells": found, "rows": summary(found), "behind": behind(found)}))


if __name__ == "__main__":
    main()
