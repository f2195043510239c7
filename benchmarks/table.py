"""The results as Markdown: one section per measurement, one row per system, and the promised numbers below."""

from __future__ import annotations

from typing import Any

COLUMNS = {
    "who": "system",
    "version": "version",
    "case": "case",
    "minibatch": "minibatch",
    "steps_per_gradient": "env steps a gradient",
    "us_per_step": "us of CPU a step",
    "us_per_gradient": "us a gradient",
    "matmul_share": "share of the matmul rate",
    "median_us": "median, us",
    "slowest_us": "slowest, us",
    "gradients_per_s": "gradients/s",
    "wait_us": "us waited a gradient",
    "lag": "lag, versions",
    "batch": "mean batch of a call",
    "predictions_per_s": "predictions/s",
    "gb_per_s": "GB/s, 1 MB slots",
    "small_us": "us a small slot",
    "round_us": "us one way, answered",
    "collisions": "share of reads that collide",
    "expected": "expected",
    "targets_per_s": "targets/s",
    "gain": "times one at a time",
    "steps_per_s": "steps/s",
    "frames_per_s": "frames/s",
    "solved_after_s": "s to goal, set-up included",
    "setup_s": "set-up, s",
    "solved_at_s": "s to goal, running",
    "command_s": "whole command, s",
    "reports": "reports",
    "median_ms": "ms, median",
    "p99_ms": "ms, 99 %",
    "max_ms": "ms, slowest",
    "stall_s": "s of a stall",
    "requeued": "trials requeued",
    "lost": "trials lost",
    "trials": "trials",
    "seconds": "s of the study",
    "study_s": "s in a study",
    "runs_s": "s of the runs alone",
    "overhead_s": "s added to a run",
    "exchange_ms_p50": "ms an exchange, median",
    "exchange_ms_p99": "ms, 99 %",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "peak_mb": "peak MB",
    "env_steps": "steps",
    "gradients_per_step": "gradients a step",
    "greedy_195": "greedy mean of 195",
    "greedy_475": "greedy mean of 475",
    "seeds_good": "seeds by greedy return",
    "return_mean": "training return",
    "eval_sampled_mean": "sampled return",
    "eval_mean": "greedy return",
    "eval_sd": "its sd",
    "eval_episodes": "episodes",
}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")


def _others(machine: dict[str, Any]) -> str:
    share = machine.get("others")
    return "" if share is None else f", other work took {100 * share:.1f} % of the machine meanwhile"


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    lines = ["| " + " | ".join(COLUMNS[key] for key in keys) + " |", "| " + " | ".join("---" for _ in keys) + " |"]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row.get(key)) for key in keys) + " |")
    lines += [f"\n{row['who']} gave no result: {row['error']}" for row in rows if "error" in row]
    return lines


def markdown(results: dict[str, Any]) -> str:
    """The whole document. Numbers of one section come from one run on one machine; sections may differ in date."""
    lines = ["# Measurements", ""]
    for name, entry in results.items():
        machine = entry["machine"]
        lines += [f"## {name}", "", entry["what"], ""]
        lines += [
            f"{entry['at']}, {machine['cpu']}, {machine['cores']} cores, load before: {machine['load']:.2f}{_others(machine)}."
        ]
        if entry["quick"]:
            lines += ["A quick look: shorter runs and fewer seeds than the full measurement."]
        lines += ["", *_rows(entry["rows"]), "", "| promised | measured | rule | holds |", "| --- | --- | --- | --- |"]
        for target in entry["targets"]:
            holds = {True: "yes", False: "**no**", None: "not measured"}[target["met"]]
            value = "not reached" if target["met"] is False and target["value"] is None else _cell(target["value"])
            lines.append(f"| {target['what']} | {value} | {target['rule']} | {holds} |")
        lines.append("")
    return "\n".join(lines)
