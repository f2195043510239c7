"""Shared code of `shoal parent` and `shoal federation local`: their options, and what both print at the end."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import msgspec

from shoal.cli.flags import Words
from shoal.core.errors import BadInput, nearest

KEYS = (
    "children", "exchanges", "updates", "env_steps", "bytes_up", "bytes_down", "exchange_ms_p50", "exchange_ms_p99",
    "rejected", "eval_mean", "eval_sd", "solved_at_s", "run",
)  # fmt: skip
SHORT = ("alpha", "beta")  # rule settings that need no prefix


class Sorted(NamedTuple):
    """Options of a command line, by their reader."""

    federation: dict[str, str]
    rule: dict[str, str]
    settings: dict[str, Any]  # of `shoal train`
    own: dict[str, str]  # of the command


def sort(parsed: Words, own: Collection[str], offered: Collection[str] = ()) -> Sorted:
    """Sort options by their reader. `BadInput` for an unknown option, with the nearest of those `offered`, by default all."""
    from shoal.experiment import AXES, Settings
    from shoal.federation.settings import FederationConfig

    ours = {field.name for field in fields(FederationConfig)}
    known = {field.name for field in fields(Settings)}
    found = Sorted({}, {}, {}, {})
    for flag, value in parsed.options.items():
        name = flag.replace("-", "_")
        axis, dot, field = name.partition(".")
        if flag in own:
            found.own[flag] = value
        elif name in ours:
            found.federation[name] = value
        elif name in SHORT or (axis == "rule" and dot):
            found.rule[field or name] = value
        elif name in known or (dot and axis in AXES):
            found.settings[name] = value
        else:
            every = [f"--{one.replace('_', '-')}" for one in (*own, *(offered or (*ours, *known, *SHORT)))]
            raise BadInput(f"unknown option --{flag}.{nearest(f'--{flag}', every) or ' See --help.'}")
    return found


def configured(sorted_: Sorted) -> dict[str, Any]:
    """Arguments of `Parent` from the options: single settings, so that a resumed parent keeps its others."""
    from shoal.federation.settings import FederationConfig, overlaid

    if "resume" not in sorted_.own:
        overlaid(FederationConfig(), {}, sorted_.federation, sorted_.rule)  # raises before anything starts
    return {"federation": sorted_.federation, "rule": sorted_.rule}


def finished(summary: Mapping[str, Any], *, quiet: bool, json: bool) -> None:
    """Print the results, and the JSON line."""
    if not quiet:
        told = f"{summary['children']} children, {summary['exchanges']:,} exchanges, {summary['updates']:,} updates"
        print(
            f"{summary['ended']}: {summary['env_steps']:,} steps in {summary['wall_s']:.1f} s; {told}", file=sys.stderr
        )
        if summary["solved_at_s"] is not None:
            print(f"solved after {summary['solved_at_s']:.1f} s", file=sys.stderr)
        if summary["eval_mean"] is not None:
            mean, sd, episodes = summary["eval_mean"], summary["eval_sd"], summary["eval_episodes"]
            print(f"evaluation: mean {mean:.1f}, sd {sd:.1f} over {episodes} greedy episodes", file=sys.stderr)
        print(f"run folder: {summary['run']}", file=sys.stderr)
    if json:
        print(msgspec.json.encode({key: summary[key] for key in KEYS}).decode(), flush=True)


def write_report(run: str, *, wanted: bool) -> None:
    """Write report.html with a clip, as for any run."""
    if wanted:
        from shoal import api

        api.load(run).report()


def help_of(usage: str) -> str:
    """The help text: usage, then the settings of the federation, of its rules and of the run."""
    from shoal.cli.listing import describe
    from shoal.experiment import Settings
    from shoal.federation.rules import RULES
    from shoal.federation.settings import FederationConfig

    parts = [usage, "settings of the federation", describe(FederationConfig, "")]
    for name, rule in RULES.items():
        parts += [f"settings of rule {name}: {rule.about}", describe(rule, "rule.")]
    parts += [
        "settings of the run; for those of its algorithm and net see `shoal train --help`",
        describe(Settings, ""),
    ]
    return "\n".join(parts)
