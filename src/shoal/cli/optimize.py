"""`shoal optimize`: learns a tuning law, from conditions to the minimiser of a function."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.cli.flags import Words, one_positional, split, whole_number
from shoal.cli.main import started_at
from shoal.core.errors import BadInput, nearest

SWITCHES = ("quiet", "json", "help")
OPTIONS = (
    "dims", "free", "shift", "algo", "sampler", "drivers", "steps", "episodes", "time-steps", "runtime", "seed", "out", "config",
    "keep", "budget", "data", "resume",
)  # fmt: skip
GRADIENTS = ("sampler", "steps", "episodes", "time-steps", "runtime", "keep")  # what only policy gradients have

USAGE = """usage: shoal optimize FUNCTION [--dims N] [--free K] [--shift S] [--budget N | --steps N] ...

Learns a law: conditions in, minimiser out. FUNCTION is a known one (sphere, ackley, rosenbrock, rastrigin, griewank, levy,
schwefel, styblinski_tang, zakharov, drop_wave, branin, himmelblau) or your own, module:function, with its knobs and conditions in
--config problem.toml:

    [knobs]
    bias = [0.1, 5.0]                     # a real number between two bounds
    mode = { choice = ["a", "b", "c"] }   # one of several values
    taps = { range = [1, 9] }             # a whole number from 1 to 8
    [conditions]
    temp = [-40, 125]

subject_to = "module:g" at the top of the file, or a list of such, allows only points where g <= 0.

  --dims N            dimensions of a known function (2)
  --free K            number of coordinates that the law chooses, the first K; the rest are conditions (1)
  --shift S           moves the minimum by S in normalised knob coordinates (0)
  --algo NAME         reinforce or ppo, which train a policy; surrogate, which needs few evaluations; or auto, which chooses by the
                      budget, the cost of f and the other flags, may keep the better law of two, and says why (auto)
  --budget N          evaluations of f to learn from, at most; surrogate: 2000 unless told; the regret and the figures take more
  --data FILE         earlier evaluations, .jsonl or .csv with a column for each knob and condition and one called value (surrogate)
  --resume FOLDER     go on with a stopped run: its evaluations.jsonl counts towards the budget, which is the stopped run's unless
                      --budget is given; the seed is the stopped run's (surrogate)
  --sampler NAME      random, latin_hypercube, latin_scipy, uncertainty, grid, heterogeneous (random)
  --drivers D         number of drivers that collect episodes (1, or 3 with --sampler heterogeneous, which gives each another
                      rule), or processes that evaluate f for surrogate (1)
  --steps N           updates (5000)
  --episodes E        episodes of each update, shared among the drivers (30, or the next multiple of D)
  --time-steps T      steps of each episode (2)
  --runtime NAME      fused if JAX can trace f, else processes; or inline, threads
  --seed S            seed of all random numbers (0)
  --keep NAME         which law is saved: best, on conditions held out from training, or last (best)
  --out FOLDER        the run folder; it gets the law, law.safetensors, and figures
  --algo.FIELD, --net.FIELD, --runtime.FIELD   as in shoal train
  --quiet, --json     no progress; one JSON object as the last line of standard output
"""


def run(words: list[str]) -> int:
    parsed = split(words, SWITCHES)
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    settings = {name.replace("-", "_"): value for name, value in parsed.options.items() if "." in name}
    plain = parsed._replace(options={n: v for n, v in parsed.options.items() if "." not in n})
    for name in plain.options:
        if name not in OPTIONS:
            raise BadInput(f"unknown option --{name}.{nearest(name, OPTIONS)}")
    problem = _problem(one_positional(plain, "function"), plain)
    from shoal.optimize.learn import learn

    quiet = "quiet" in parsed.switches
    algo = plain.options.get("algo", "auto")
    _check_algo(algo, plain, settings)
    learnt = learn(
        problem,
        algo=algo,
        budget=whole_number(plain, "budget", 1) if "budget" in plain.options else None,
        data=plain.options.get("data"),
        resume=plain.options.get("resume"),
        sampler=plain.options["sampler"].replace("-", "_") if "sampler" in plain.options else None,
        drivers=whole_number(plain, "drivers", 1) if "drivers" in plain.options else None,
        steps=whole_number(plain, "steps", 1) if "steps" in plain.options else None,
        episodes=whole_number(plain, "episodes", 30) if "episodes" in plain.options else None,
        time_steps=whole_number(plain, "time-steps", 1) if "time-steps" in plain.options else None,
        runtime=plain.options.get("runtime"),
        seed=whole_number(plain, "seed", 0, least=0) if "seed" in plain.options else None,
        out=plain.options.get("out"),
        keep=plain.options.get("keep"),
        quiet=quiet,
        started_at=started_at(),
        settings=settings,
    )
    _draw(learnt)
    if not quiet:
        _tell(learnt.summary)
    if "json" in parsed.switches:
        print(msgspec.json.encode(learnt.summary).decode(), flush=True)
    return 0


def _check_algo(algo: str, words: Words, settings: Mapping[str, str]) -> None:
    """Refuse flags that the algorithm would not read."""
    given = [name for name in GRADIENTS if name in words.options] + [name for name in settings if "." in name]
    few = next((name for name in ("data", "resume") if name in words.options), None)
    if given and (algo == "surrogate" or (algo == "auto" and few)):
        why = "surrogate" if algo == "surrogate" else f"--{few}"
        raise BadInput(f"--{given[0]} is for --algo reinforce or ppo, not for {why}")
    if "budget" in words.options and "steps" in words.options:
        raise BadInput("--budget and --steps: give one of them, because each decides the number of updates")


def _draw(learnt: Any) -> None:
    """Write the figures, and add the evaluations they took to the summary."""
    from shoal.cli.law_pictures import draw
    from shoal.run.folder import RunFolder

    if learnt.summary["regret"] is None:
        return  # there are no searched optima, which the figures show
    folder, before = RunFolder.open(learnt.summary["run"]), learnt.law.problem.evaluations
    learnt.summary["pictures"] = [path.name for path in draw(learnt, folder.path)]
    learnt.summary["evaluations_of"]["pictures"] = learnt.law.problem.evaluations - before
    folder.write_json(folder.summary_path, learnt.summary)


def _problem(name: str, words: Words) -> Any:
    from shoal.optimize import functions
    from shoal.optimize.problem import Problem

    if ":" not in name:
        if "config" in words.options:
            raise BadInput("--config describes the knobs of a function of your own, module:function")
        shift = words.options.get("shift", "0")
        try:
            moved = float(shift)
        except ValueError:
            raise BadInput(f"--shift is {shift!r}: expected a number") from None
        return functions.make(name, whole_number(words, "dims", 2), whole_number(words, "free", 1, least=0), moved)
    from shoal.experiment import read_file

    if "config" not in words.options:
        raise BadInput(f"{name}: a function of your own needs --config problem.toml with its knobs and conditions")
    for flag in ("dims", "free", "shift"):
        if flag in words.options:
            raise BadInput(f"--{flag} is for known functions; {name}'s knobs are in its --config")
    told = read_file(words.options["config"])
    kinds: dict[str, Any] = {
        "knobs": dict, "conditions": dict, "kind": str, "noisy": bool, "robust": str | float, "name": str, "subject_to": str | list,
    }  # fmt: skip
    for entry, value in told.items():
        where = f"config {words.options['config']!r}: "
        if entry not in kinds:
            raise BadInput(f"{where}unknown entry {entry!r}.{nearest(entry, kinds)} There are: {', '.join(kinds)}.")
        if not isinstance(value, kinds[entry]):
            words_for: dict[Any, str] = {dict: "a table", str: "a word", bool: "true or false"}
            words_for[str | float] = "a word, or a number with a point"
            wanted = words_for.get(kinds[entry], "module:function")
            raise BadInput(f"{where}{entry} is {value!r}: expected {wanted}")
    f = _imported(name)
    written = told.get("subject_to", [])
    limits = [_imported(g) for g in (written if isinstance(written, list) else [written])]
    knobs = {knob: _knob(knob, written) for knob, written in told.get("knobs", {}).items()}
    conditions = {c: tuple(b) if isinstance(b, list) else b for c, b in told.get("conditions", {}).items()}
    rest = {k: told[k] for k in ("kind", "noisy", "robust", "name") if k in told}
    return Problem(f, knobs=knobs, conditions=conditions, subject_to=limits, **rest)


def _imported(name: Any) -> Any:
    from shoal.envs.registry import import_object

    if not isinstance(name, str) or ":" not in name:
        raise BadInput(f"subject_to: {name!r} is not of the form module:function")
    try:
        return import_object(name)
    except Exception as error:  # importing runs the user's own code
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"cannot import {name!r}: {reason}") from None


def _knob(name: str, written: Any) -> Any:
    if isinstance(written, Mapping):
        if set(written) == {"choice"} and isinstance(written["choice"], list):
            return list(written["choice"])
        told = written.get("range")
        if len(written) == 1 and isinstance(told, list) and len(told) in (2, 3) and all(type(n) is int for n in told):
            if told[2:] == [0]:
                raise BadInput(f"knob {name!r}: a range's step must not be 0")
            return range(*told)
        raise BadInput(f"knob {name!r}: a table has either choice = [...] or range = [first, end]")
    return tuple(written) if isinstance(written, list) else written


def _tell(summary: Mapping[str, Any]) -> None:
    s = summary
    if s.get("algo") == "surrogate":
        n, lost, raw = s["conditions"]["reporting"], s["regret"], s["regret_of_policy"]
        took = f"{s['f_s']:.1f} s in f, {s['wall_s'] - s['f_s']:.1f} s elsewhere"
        if s["drivers"] > 1:
            took = f"{s['f_s']:.1f} s in f, shared by {s['drivers']} drivers, {s['wall_s']:.1f} s in all"
        spent = (
            f"{s['evaluations']:,} evaluations of {s['budget']:,}, {s['warm']:,} known before, {s['dropped']:,} failed"
        )
        print(f"{s['function']}: {spent}; {took}", file=sys.stderr)
        if "violations" in s and s["violations"] is not None:
            kept = f"violated at {s['violations']} of {n} held-out conditions"
            print(f"constraints: {kept}; without polishing at {s['violations_of_policy']}", file=sys.stderr)
        _tell_left_out(s)
        if lost is not None:
            regret = f"regret {lost['mean']:.4g}, worst {lost['worst']:.4g}, over {n} held-out conditions"
            bare = f"; without polishing {raw['mean']:.4g}" if raw is not None else ""
            print(f"law: {regret}{bare}", file=sys.stderr)
        print(f"law: {s['run']}/law.safetensors", file=sys.stderr)
        return
    speed = f"{s['evaluations']:,} evaluations in {s['wall_s']:.1f} s ({s['steps_per_s']:,.0f} steps/s)"
    print(f"{s['function']}: {s['steps']:,} updates of {s['episodes']} episodes, {speed}", file=sys.stderr)
    _tell_left_out(s)
    ends = f"first 1,000 steps {s['first_mse_mean']:.4g}, last 1,000 {s['last_mse_mean']:.4g}, best {s['best_mse']:.4g}"
    if "curve" not in s["left_out"]:
        print(f"MSE over the conditions: {ends}", file=sys.stderr)
    n, lost = s["conditions"], s["regret"]
    regret = "no regret"
    if lost is not None:
        regret = f"regret {lost['mean']:.4g}, worst {lost['worst']:.4g}, over {n['reporting']} others"
    if s.get("violations") is not None:
        print(f"constraints: violated at {s['violations']} of {n['reporting']} held-out conditions", file=sys.stderr)
    best = f"the best of the run over {n['choosing']} held-out conditions"
    chosen = f"step {s['kept_step']:,}, {best if s['kept'] == 'best' else 'the last'}"
    if s["kept"] == "surrogate":
        chosen = f"by surrogate from {s['evaluations_of']['surrogate']:,} evaluations, {best}"
    print(f"law: {chosen}; {regret}", file=sys.stderr)
    print(f"law: {s['run']}/law.safetensors", file=sys.stderr)


def _tell_left_out(summary: Mapping[str, Any]) -> None:
    for what, why in summary["left_out"].items():
        print(f"law: no {'regret and no figures' if what == 'regret' else what}: {why}", file=sys.stderr)
