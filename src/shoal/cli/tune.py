"""`shoal tune`: hyperparameter studies. Trials are ordinary trainings; a scheduler decides which of them continue."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from shoal.cli.flags import Words, one_positional, split
from shoal.core.errors import BadInput, nearest

COMMANDS = ("report", "replay", "dashboard", "simulate")
SWITCHES = ("json", "quiet", "population", "help")
OWN = ("study", "resume")

USAGE = """usage: shoal tune ENV --space NAME=VALUES [--space ...] [--algo NAME] [--topology NAME] [--scheduler NAME] [--trials N]
                      [--phases P] [--phase AMOUNT] [--confirm topKxN] [--workers W] [--study FOLDER] [--FIELD VALUE ...]
       shoal tune --resume FOLDER
       shoal tune report FOLDER        write report.html again
       shoal tune replay FOLDER        repeat every decision from the study's ledger, and list differences
       shoal tune dashboard FOLDER     serve optuna-dashboard, read-only and on this machine only
       shoal tune simulate ...         compare schedulers without training (see shoal tune simulate --help)

Searches for the best settings on ENV. A trial is a configuration; its runs are ordinary trainings in separate processes. After
each phase a trial reports the mean return of its last 100 episodes, and the scheduler decides whether it continues. Writes a
folder with every trial's runs, the study's ledger and report.html. Ctrl-C stops with a checkpoint of every trial; --resume
continues.

  --space NAME=VALUES    a setting to vary: a field of the algorithm, net.FIELD, topology.FIELD, actors, envs or learners;
                         its values: log(1e-5,1e-2)  uniform(0,0.1)  logint(2,100)  int(1,8)  1..8  .9,.95,.99  64,64;128,128
  --study FOLDER         the study's folder, by default a new one in runs/; the same command with the same folder continues it
  --resume FOLDER        continue a study that was stopped or killed
  --quiet                no progress
  --json                 one JSON object as the last line of standard output

All other options of `shoal train` apply to every trial (--algo, --topology, --runtime, --actors, --algo.FIELD ...).
"""


def run(words: list[str]) -> int:
    if words and words[0] in COMMANDS:
        return _command(words[0], words[1:])
    parsed = split(words, SWITCHES, again=("space",))
    if "help" in parsed.switches:
        print(_help(), end="")
        return 0
    if "resume" in parsed.options:
        extra = [*parsed.positional, *(f"--{name}" for name in parsed.options if name != "resume")]
        extra += ["--space"] if parsed.lists["space"] else []
        if extra:
            raise BadInput(f"shoal tune --resume continues a study with its own settings: it does not take {extra[0]}")
        return _tune(None, {}, parsed)
    first = parsed.positional[0] if parsed.positional else ""
    if first.isidentifier() and first.islower() and (hint := nearest(first, COMMANDS)):
        raise BadInput(f"unknown command 'tune {first}'.{hint} See shoal tune --help.")
    env = one_positional(parsed, "environment (shoal envs lists them), or a study with --resume")
    _with_optuna()
    return _tune(env, _values(env, parsed), parsed)


def _values(env: str, parsed: Words) -> dict[str, Any]:
    """Values for `StudyConfig` from the command line: options that are not the study's own apply to the trials."""
    from dataclasses import fields

    from shoal.experiment import AXES, Settings
    from shoal.tuning.study import OWN as OF_STUDY
    from shoal.tuning.study import space_words

    values: dict[str, Any] = {"env": env, "settings": {}, "space": space_words(parsed.lists["space"])}
    if "population" in parsed.switches:
        values["population"] = True
    known = [f.name for f in fields(Settings)]
    for name, text in parsed.options.items():
        bare = name.replace("-", "_")
        axis, dot, _ = bare.partition(".")
        if name in OWN:
            continue
        if bare in OF_STUDY:
            values[bare] = text
        elif (dot and axis in AXES) or (not dot and bare in known):
            values["settings"][bare] = text
        else:
            flags = [f"--{k.replace('_', '-')}" for k in (*OF_STUDY, *OWN, *SWITCHES, *known, "space")]
            hint = nearest(f"--{name}", flags) or " See shoal tune --help."
            raise BadInput(f"unknown option --{name}.{hint}")
    return values


def _tune(env: str | None, values: dict[str, Any], parsed: Words) -> int:
    from shoal import api
    from shoal.cli.tune_progress import study_progress
    from shoal.run.files import one_line

    quiet, wants_json = "quiet" in parsed.switches, "json" in parsed.switches
    with study_progress(quiet=quiet) as shown:
        if env is None:
            study = api.resume_tuning(parsed.options["resume"], tell=shown.tell, begun=shown.begin)
        else:
            study = api.run_tuning(values, parsed.options.get("study"), tell=shown.tell, begun=shown.begin)
    if not quiet:
        _print_result(study)
    if wants_json:
        print(one_line(study.summary()), flush=True)
    return 0


def _print_result(study: Any) -> None:
    """Print the best configuration, the command that trains it, and the study's folder."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if not study.done:
        say(f"stopped with checkpoints; continue with: {shlex.join(['shoal', 'tune', '--resume', str(study.path)])}")
    if study.course.ranked():
        best, summary = study.best, study.summary()
        tried = ", ".join(f"{k} {f'{v:.4g}' if isinstance(v, float) else v}" for k, v in best.settings.items())
        seeds, phases = study.plan.config.seeds_per_trial, "1 phase" if best.unit == 1 else f"{best.unit} phases"
        spread = "" if best.spread is None else f" (sd {best.spread:.1f} over {seeds} seeds)"
        say(f"best: trial {best.number}, score {best.value:.1f}{spread} after {phases}: {tried}")
        for one in study.confirmed:
            ends = "" if one.ci is None else f" [{one.ci[0]:.1f}, {one.ci[1]:.1f}]"
            left = ", left out of the race" if one.left_out else ""
            left += f", failed on {one.failed} more" if one.failed else ""
            say(
                f"confirmed: trial {one.trial}, {one.mean:.1f}{ends} on {len(one.scores)} fresh seeds,"
                f" tuning score {one.tuning:.1f}, optimism {one.optimism:.1f}{left}"
            )
        if study.verdict:
            say(study.verdict)
        if study.done and study.plan.confirm is not None and not study.confirmed:
            say("not confirmed: every run on a fresh seed failed")
        say(
            f"trained {study.alpha:.0%} of all phases in {summary['wall_s']:.0f} s, {summary['switches']} context switches"
        )
        say(f"train it: {study.command(best)}")
    elif study.done:
        why = next((r.why for trial in study.trials for r in reversed(trial.reports) if r.why), "")
        say(f"no trial has a score{f': {why}' if why else ''}")
    report = study.path / "report.html"
    say(f"study: {study.path}" + (f"   report: {report}" if report.exists() else ""))


def _command(name: str, words: list[str]) -> int:
    if name == "simulate":
        from shoal.cli import tune_simulate

        return tune_simulate.run(words)
    parsed = split(words, SWITCHES, ("port",) if name == "dashboard" else ())
    if "help" in parsed.switches:
        print(_help(), end="")
        return 0
    _with_optuna()
    folder = one_positional(parsed, "study folder")
    from shoal import api
    from shoal.run.files import one_line
    from shoal.tuning.study import Study

    if name == "dashboard":
        from shoal.cli.flags import whole_number
        from shoal.tuning.dashboard import serve

        return serve(folder, whole_number(parsed, "port", 8080), lambda line: print(line, file=sys.stderr, flush=True))
    study = Study.open(folder)
    if name == "report":
        print(f"report: {api.report_tuning(study)}", file=sys.stderr)
        if "json" in parsed.switches:
            print(one_line(study.summary()), flush=True)
        return 0
    found = study.replay()
    for line in found.mismatches:
        print(line)
    print(
        f"{found.decisions} decisions repeated from the ledger: {len(found.mismatches) or 'no'} mismatches",
        file=sys.stderr,
    )
    if "json" in parsed.switches:
        print(one_line({"decisions": found.decisions, "mismatches": found.mismatches}), flush=True)
    return 1 if found.mismatches else 0


def _help() -> str:
    from shoal.cli.listing import describe
    from shoal.tuning.config import StudyConfig

    lines = describe(StudyConfig, "").split("\n  --env\n", 1)[-1]
    at = lines.index("  --scheduler")
    return f"{USAGE}\nsettings of a study\n{lines[at:]}"


def _with_optuna() -> None:
    try:
        import shoal.tuning.book  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise BadInput("shoal tune needs Optuna: pip install 'shoal[tune]'") from None
