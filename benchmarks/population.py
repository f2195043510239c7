"""A population in one program beside runs one after another: 256 CartPole agents by A2C, 100,000 steps each.

    python benchmarks/population.py [--agents 256] [--runs 3]

Both are whole commands, from start to end. A few runs are measured and multiplied by the number of agents. Where other work runs
beside it, compare the CPU seconds, which count all processes of a command. Writes results/population.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shoal.run.folder import describe_machine

STEPS = 100_000
SAME = ["CartPole-v1", "--algo", "a2c", "--envs", "16", "--quiet"]


def measured(words: list[str]) -> dict[str, Any]:
    """Run `shoal WORDS ...`: wall and CPU seconds, and the last line of its output."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen([sys.executable, "-m", "shoal", *words], stdout=out)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"shoal {' '.join(words)} ended with {child.returncode}")
        out.seek(0)
        line = json.loads(out.read().decode().strip().splitlines()[-1])
    return {"wall": time.monotonic() - began, "cpu": used.ru_utime + used.ru_stime, "line": line}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        single = ["train", *SAME, "--runtime", "fused", "--steps", str(STEPS), "--eval-episodes", "0", "--no-report"]
        runs = [
            measured([*single, "--sinks", "jsonl", "--seed", str(seed), "--out", f"{place}/{seed}", "--json"])
            for seed in range(asked.runs + 1)
        ][1:]  # the first one fills the compilation cache
        study = ["tune", *SAME, "--population", "--workers", str(asked.agents), "--trials", str(asked.agents)]
        study += ["--scheduler", "none", "--phases", "1", "--phase", f"{STEPS}steps"]
        study += ["--space", "learning_rate=log(1e-4,1e-2)", "--study", f"{place}/study", "--json"]
        whole = measured(study)
    trained = sum(trial["phases"] == 1 for trial in whole["line"]["trials"])
    if trained != asked.agents:
        raise SystemExit(f"{trained} of {asked.agents} agents were trained")
    machine, load = describe_machine(), os.getloadavg()[0]
    lines = [
        "# A population in one program",
        "",
        f"{asked.agents} CartPole-v1 agents by A2C, {STEPS:,} steps each, whole commands; {machine['cores']} cores,"
        f" {machine['cpu']}, {time.strftime('%Y-%m-%d', time.gmtime())}, load {load:.0f} at the end.",
        f"Runs one after another: the median of {asked.runs} runs, times {asked.agents}. Under such a load only the CPU"
        " seconds count.",
        "",
        "| | one program | runs one after another | ratio |",
        "| --- | --- | --- | --- |",
    ]
    for name, title in (("cpu", "CPU seconds"), ("wall", "wall seconds")):
        one = statistics.median(run[name] for run in runs)
        total = one * asked.agents
        lines.append(f"| {title} | {whole[name]:.1f} | {total:,.0f} ({one:.1f} each) | 1/{total / whole[name]:.1f} |")
    lines += [
        "",
        "The goal is at most 1/20. The study's command also writes its ledger and report.html, the runs no report.",
    ]
    text = "\n".join(lines) + "\n"
    (Path(__file__).parent / "results" / "population.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
