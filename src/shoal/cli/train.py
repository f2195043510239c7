"""`shoal train`: trains an agent and writes a run folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal.cli.flags import Words, split, whole_number
from shoal.cli.main import started_at
from shoal.core.errors import BadInput, RunFailed, nearest
from shoal.process.mpi_environment import follows, launched
from shoal.process.restarts import Begun, restarted

SWITCHES = ("quiet", "json", "print-config", "no-report", "help")
OWN = ("out", "resume", "from", "config", "seeds", "restarts")
RESTARTS = 3  # of a main process that is killed

USAGE = """usage: shoal train ENV [--algo NAME] [--topology NAME] [--runtime NAME] [--FIELD VALUE ...]
       shoal train --resume RUN [--steps N ...]

Trains on ENV: an id (`shoal envs`), an import path pkg.module:Class, or an entry point. Writes a run folder with config, metrics,
checkpoints, policy and report.html. Ctrl-C stops it with a checkpoint; --resume continues.

  --out FOLDER        the run folder; by default runs/<env>-<algo>-<topology>-<time>
  --resume RUN        continue a run, from its last checkpoint or from the checkpoint file given
  --from RUN          begin with another run's weights: fine-tuning
  --config FILE       settings from a .toml or .json file; flags win over it
  --seeds N           N runs with seeds S, S+1, ...; prints the interval of the evaluations
  --restarts N        resume from the last checkpoint, N times at most, if the main process is killed; by default 3 if the
                      flags, --config or the resumed run name the runtime processes, which also replaces other processes
                      that are killed, and 0 elsewhere
  --print-config      show what would run, and do not run it
  --quiet             no progress
  --json              one JSON object as the last line of standard output
  --no-report         skip report.html and its clip
"""


def run(words: list[str]) -> int:
    parsed = split(words, SWITCHES)
    if "help" in parsed.switches:
        print(_help(parsed))
        return 0
    if len(parsed.positional) > 1:
        raise BadInput(f"give one environment, not {len(parsed.positional)}: {' '.join(parsed.positional)}")
    env = parsed.positional[0] if parsed.positional else None
    own = {name: parsed.options[name] for name in OWN if name in parsed.options}
    settings: dict[str, Any] = {name.replace("-", "_"): v for name, v in parsed.options.items() if name not in OWN}
    _check_names(settings)
    if env is None and "resume" not in own and "config" not in own:
        raise BadInput("no environment: give an id such as LunarLander-v3, an import path, or --resume RUN")
    if "print-config" in parsed.switches:
        return _print_config(env, own, settings)
    seeds = whole_number(parsed, "seeds", 1)
    # With other runtimes the environment runs in the main process, and a debugger in it needs the terminal.
    guarded = seeds == 1 and launched() is None and _named_runtime(own, settings) == "processes"
    restarts = whole_number(parsed, "restarts", RESTARTS if guarded else 0, least=0)
    if restarts == 0:
        return _train(parsed, env, own, settings, seeds)
    if seeds > 1:
        raise BadInput("--restarts and --seeds: guard one run at a time")
    if launched() is not None:
        raise BadInput("--restarts: a rank of an MPI job cannot be restarted alone; start the job with --resume RUN")

    def run_from(folder: Path | None, begun: Begun) -> int:
        if folder is None:
            return _train(parsed, env, own, settings, seeds, begun)
        return _train(parsed, None, {"resume": str(folder)}, settings, seeds, begun)

    return restarted(restarts, run_from)


def _train(
    parsed: Words,
    env: str | None,
    own: Mapping[str, str],
    settings: dict[str, Any],
    seeds: int,
    begun: Begun | None = None,
) -> int:
    from shoal import api

    common: dict[str, Any] = {
        "config": own.get("config"),
        "start_from": own.get("from"),
        "quiet": "quiet" in parsed.switches,
        "report": "no-report" not in parsed.switches,
        "started_at": started_at(),
        "begun": begun,
    }
    if seeds > 1:
        first = whole_number(parsed, "seed", _whole(_given(own, {}).get("seed", 0)), least=0)
        settings.pop("seed", None)
        return _several(api, env, range(first, first + seeds), own, settings, common, "json" in parsed.switches)
    finished = api.train(env, out=own.get("out"), resume=own.get("resume"), **common, **settings)
    if not common["quiet"]:
        _print_result(finished)
    if "json" in parsed.switches:
        print(msgspec.json.encode(finished.summary).decode(), flush=True)
    return 0


def _check_names(settings: Mapping[str, Any]) -> None:
    """Check, before any heavy import, that every flag exists. Fields of the axes are checked by their owners."""
    from dataclasses import fields

    from shoal.experiment import AXES, Settings

    known = [field.name for field in fields(Settings)]
    for name in settings:
        axis, dot, _ = name.partition(".")
        if (dot and axis not in AXES) or (not dot and name not in known):
            flags = [f"--{k.replace('_', '-')}" for k in (*known, *OWN, *SWITCHES)] + [f"--{axis}." for axis in AXES]
            hint = nearest(f"--{name.replace('_', '-')}", flags) or " See shoal train --help."
            raise BadInput(f"unknown option --{name.replace('_', '-')}.{hint}")


def _given(own: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the resumed run, of --config and of the flags, in one."""
    from shoal.experiment import merge, read_file
    from shoal.run.folder import RunFolder

    layers = [RunFolder.open(own["resume"]).read_config()] if "resume" in own else []
    layers += [read_file(own["config"])] if "config" in own else []
    return merge(*layers, settings)


def _named_runtime(own: Mapping[str, str], settings: Mapping[str, Any]) -> Any:
    """The runtime if it is named. The default depends on the environment, which the guarding process must not make."""
    return _given(own, settings).get("runtime", {}).get("name")


def _print_config(env: str | None, own: Mapping[str, str], settings: Mapping[str, Any]) -> int:
    from shoal.experiment import join, resolve

    loose = _given(own, settings)
    named = loose.pop("env", None)
    join(loose)
    if follows():
        return 0
    wanted = {k: v for k, v in loose.items() if k not in ("machine", "spec")}
    plan = resolve(env or named, wanted, trained="from" in own)
    print(msgspec.json.format(msgspec.json.encode(plan.as_dict()), indent=2).decode())
    for note in plan.notes:
        print(note, file=sys.stderr)
    return 0


def _several(
    api: Any,
    env: str | None,
    seeds: range,
    own: Mapping[str, str],
    settings: dict[str, Any],
    common: dict[str, Any],
    json: bool,
) -> int:
    """The same run with several seeds, and statistics over them."""
    from shoal.studies.statistics import summarise

    if "resume" in own:
        raise BadInput("--seeds and --resume: resume one run at a time")
    summaries: list[dict[str, Any]] = []
    failed: list[int] = []
    for seed in seeds:
        out = Path(own["out"]) / f"seed-{seed}" if "out" in own else None
        try:
            finished = api.train(env, out=out, seed=seed, **common, **settings)
        except RunFailed as error:
            print(f"shoal: seed {seed}: {error}", file=sys.stderr)
            failed.append(seed)
            continue
        finally:
            common["started_at"] = None  # imports count only once
        summaries.append(finished.summary)
        if not common["quiet"]:
            _print_result(finished)
        if finished.interrupted or finished.summary["stopped"]:
            break
    # Evaluations of whole trainings. Training returns are another measure: they stand in only if nothing was to be evaluated.
    whole_runs = [s for s in summaries if not s["stopped"]]
    measure = "eval_mean" if any(s["eval_mean"] is not None for s in whole_runs) else "return_mean"
    known = [s[measure] for s in whole_runs if s[measure] is not None]
    whole = summarise(known) if known else None
    solved = [s["solved_at_s"] for s in summaries if s["solved_at_s"] is not None]
    if not common["quiet"]:
        runs = len(summaries) + len(failed)
        span = "" if whole is None or whole.ci is None else f" (95 % interval {whole.ci[0]:.1f} to {whole.ci[1]:.1f})"
        kind = "evaluation" if measure == "eval_mean" else "training episodes"
        mean = "no score" if whole is None else f"{kind}: mean {whole.mean:.1f}{span} over {len(known)}"
        broken = f", failed {len(failed)}" if failed else ""
        print(f"{runs} seeds: {mean}, solved {len(solved)} of {runs}{broken}", file=sys.stderr)
    if json:
        score = None if whole is None else whole.as_dict()
        together = {"seeds": summaries, measure.removesuffix("_mean"): score, "solved": len(solved), "failed": failed}
        print(msgspec.json.encode({"eval": None, **together}).decode(), flush=True)
    return 1 if failed else 0


def _whole(seed: Any) -> int:
    if not isinstance(seed, int) or seed < 0:
        raise BadInput(f"seed is {seed!r} in --config: a whole number of at least 0")
    return seed


def _print_result(finished: Any) -> None:
    """Print the results and the run folder."""
    s = finished.summary
    speed = f" at {s['steps_per_s']:,.0f} steps/s" if s["steps_per_s"] else ""
    solved = f"; solved after {s['solved_at_s']:.1f} s" if s["solved_at_s"] is not None else ""
    word = "stopped after" if s["stopped"] else "trained"
    print(f"{word} {s['env_steps']:,} steps in {s['wall_s']:.1f} s{speed}{solved}", file=sys.stderr)
    if s["eval_mean"] is not None:
        print(
            f"evaluation: mean {s['eval_mean']:.1f}, sd {s['eval_sd']:.1f}, interquartile mean {s['eval_iqm']:.1f}"
            f" over {s['eval_episodes']} greedy episodes",
            file=sys.stderr,
        )
    if s["eval_sampled_mean"] is not None:
        mean, sd = s["eval_sampled_mean"], s["eval_sampled_sd"]
        print(f"  with sampled actions: mean {mean:.1f}, sd {sd:.1f} over as many episodes", file=sys.stderr)
    report = finished.folder.report_path
    print(f"run folder: {finished.path}" + (f"   report: {report}" if report.exists() else ""), file=sys.stderr)


def _help(parsed: Words) -> str:
    """The usage, then every setting with its default; the axes as they are chosen on this command line."""
    from shoal.algos import ALGOS
    from shoal.cli.listing import describe
    from shoal.experiment import NETS, Settings, look_up
    from shoal.runtimes import RUNTIMES
    from shoal.topologies import TOPOLOGIES

    parts = [USAGE, "settings", describe(Settings, "")]
    algo = look_up(
        parsed.options.get("algo", "ppo"), ALGOS, "algorithm"
    )  # it may have its own default topology and net
    for axis, registry, default in (
        ("algo", ALGOS, "ppo"),
        ("topology", TOPOLOGIES, algo.usual_topology),
        ("runtime", RUNTIMES, "threads"),
        ("net", NETS, algo.net_name),
    ):
        name = parsed.options.get(axis, default)
        parts += [f"settings of {axis} {name}", describe(look_up(name, registry, axis).Config, f"{axis}.")]
    return "\n".join(parts)
