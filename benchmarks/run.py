"""Measure Shoal and its peers side by side, one after another on the same machine.

    python benchmarks/run.py [--only lunar-speed,startup] [--quick]

Writes `results/latest.json` and `results/latest.md` after each measurement. Measurements that are not run again keep
their entry, with its own date and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from idle import OtherWork, wait_until_idle
from measurements import MEASUREMENTS
from rooms import HERE
from shoal_runs import SHOAL, TMP
from table import markdown

RESULTS = HERE / "results"


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model, "cores": cores, "system": platform.platform(), "load": os.getloadavg()[0]}


def chosen(words: str | None) -> list[str]:
    names = [word for word in (words or "").split(",") if word] or list(MEASUREMENTS)
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        print(f"--only has {unknown[0]!r}; it takes: {', '.join(MEASUREMENTS)}", file=sys.stderr)
        sys.exit(2)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of: {', '.join(MEASUREMENTS)}")
    parser.add_argument("--quick", action="store_true", help="shorter runs, fewer seeds: to see that it works")
    parser.add_argument(
        "--busy", action="store_true", help="do not wait for an idle machine (figures are then worth little)"
    )
    args = parser.parse_args()
    names = chosen(args.only)
    if not Path(SHOAL).exists():
        print(f"{SHOAL} does not exist: run `make setup` first, or set SHOAL to the command", file=sys.stderr)
        sys.exit(2)
    RESULTS.mkdir(exist_ok=True)
    latest = RESULTS / "latest.json"
    results: dict[str, Any] = json.loads(latest.read_text()) if latest.exists() else {}
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        if not args.busy:
            wait_until_idle()
        at, where, others = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), machine(), OtherWork()
        rows, targets = MEASUREMENTS[name](args.quick)
        where["others"] = others.share()
        results[name] = {
            "what": " ".join((MEASUREMENTS[name].__doc__ or "").split()),
            "at": at,
            "quick": args.quick,
            "machine": where,
            "rows": rows,
            "targets": [target.saved() for target in targets],
        }
        ordered = {known: results[known] for known in MEASUREMENTS if known in results}
        latest.write_text(json.dumps(ordered, indent=1) + "\n")
        (RESULTS / "latest.md").write_text(markdown(ordered))
        for row in rows:
            if "error" in row:
                print(f"  {row['who']}, {row.get('case', name)}: failed: {row['error']}", file=sys.stderr, flush=True)
        for target in targets:
            print(f"  {target.what}: {target.value} ({target.rule}: {target.met})", file=sys.stderr, flush=True)
    shutil.rmtree(TMP, ignore_errors=True)
    print(f"results: {RESULTS / 'latest.md'}")


if __name__ == "__main__":
    main()
