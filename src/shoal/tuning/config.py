"""Settings of a study: `StudyConfig` comes from a command line or a file, `prepare` checks it and returns a `Plan`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from shoal.core import config as configs
from shoal.core.config import NonNegative, Positive, PositiveFloat
from shoal.core.errors import BadInput
from shoal.envs.registry import reward_threshold
from shoal.experiment import nest, resolve
from shoal.launch.compose import make_algorithm
from shoal.process.relay import launcher_words
from shoal.studies.words import word
from shoal.tuning.phases import Phase, parse_phase
from shoal.tuning.population import check_space, fused_plan, with_buckets
from shoal.tuning.scheduler import Scheduler
from shoal.tuning.schedulers import Budget, make_scheduler
from shoal.tuning.spaces import Choice, Domain, Space, Value, parse_space, written

FRESH = 1000  # default distance of the test seeds from the tuning seeds
PLAIN = ("actors", "envs", "learners")  # settings of a run that a space may vary, in addition to those of its axes
MINE = ("seed", "eval_episodes", "out", "resume")  # settings of a run that the study sets itself
LINES_EVERY = 0.05  # seconds between two lines of a trial's metrics: the precision of the end of a phase


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Settings of a study."""

    env: str
    """environment of all trials"""
    space: dict[str, str] = field(default_factory=dict)
    """search space: {name: values}"""
    settings: dict[str, Any] = field(default_factory=dict)
    """settings of `shoal train` that all trials share"""
    scheduler: str = "hypertrick"
    """decides which trials continue: hypertrick, sh, hyperband, asha, pbt, none, or an import path pkg.module:Class"""
    trials: Positive = 16
    """number of configurations"""
    phases: Positive = 4
    """phases of a full training; a trial reports its score after each"""
    phase: str = "20000steps"
    """length of a phase: 200episodes, 20000steps or 30s"""
    eviction: float = 0.25
    """hypertrick: share of trials that is stopped in each phase"""
    eta: Positive = 2
    """sh, hyperband and asha keep one in this many trials"""
    sampler: str = "random"
    """source of configurations: random, tpe, cmaes, grid, or an import path pkg.module:Sampler"""
    warm_start: str = ""
    """folder of an earlier study with the same space: its best configurations are tried first, and its trials inform the sampler"""
    warm_trials: Positive = 3
    """number of configurations taken from the earlier study"""
    seeds_per_trial: Positive = 1
    """concurrent runs per trial, each with its own seed; a trial's score is their mean"""
    confirm: str = ""
    """topKxN trains the K best trials again on N fresh seeds each, such as top3x10"""
    baseline: bool = True
    """with --confirm: train the environment's default settings on the fresh seeds too, and compare the winner with them"""
    workers: Positive = 2
    """trials that train at the same time"""
    launchers: tuple[str, ...] = ()
    """commands that start processes on other machines, such as "ssh node1,ssh node2": runs are spread over them; each takes a
    line for a shell as its last word, and the study's folder has the same path everywhere"""
    population: bool = False
    """train the trials of all workers in one compiled function, one for each shape in the space; for JAX-native environments"""
    seed: NonNegative = 0
    """seed of the sampler, and first seed of the trials' runs"""
    test_seed: NonNegative | None = None
    """first fresh seed; by default 1000 above --seed"""
    storage: str | None = None
    """URL of a database for the study; by default it is a journal file in the study's folder"""
    lease: PositiveFloat = 600.0
    """seconds without new metrics after which a worker counts as lost"""


class Confirm(NamedTuple):
    top: int
    seeds: int


class Plan(NamedTuple):
    """A checked study."""

    config: StudyConfig
    space: Space
    phase: Phase
    confirm: Confirm | None
    tune_seeds: tuple[int, ...]
    test_seeds: tuple[int, ...]
    goal: float | None = None  # mean return of 100 episodes that counts as solved

    def scheduler(self) -> Scheduler:
        """Create the scheduler in its initial state."""
        config = self.config
        budget = Budget(config.trials, config.phases, config.eviction, config.eta, config.seed)
        return make_scheduler(config.scheduler, budget)

    def settings(self, tried: Mapping[str, Value], seed: int) -> dict[str, Any]:
        """Settings of `shoal train` for a run of this configuration."""
        fused = {"runtime": "fused"} if self.config.population else {}
        shared = {**fused, "metrics_every": LINES_EVERY, "sinks": ("jsonl",), **self.config.settings}
        if self.phase.unit == "steps":
            shared["steps"] = round(self.phase.amount) * self.config.phases
        own = {name if _axis(name) else f"algo.{name}": value for name, value in tried.items()}
        return {**shared, **own, "seed": seed, "eval_episodes": 0}


def make_config(values: Mapping[str, Any]) -> StudyConfig:
    """Build the config from untyped values; `BadInput` names the first wrong one."""
    eviction = values.get("eviction")
    config = configs.build(StudyConfig, values)
    if not 0 < config.eviction < 1:
        raise BadInput(f"--eviction is {eviction}: expected a number between 0 and 1, both excluded")
    return config


def prepare(config: StudyConfig) -> Plan:
    """Check everything that can be checked without training. `BadInput` names the first problem."""
    phase = parse_phase(config.phase)
    plain = {name.replace("-", "_") for name in config.settings}
    for name in MINE:
        if name in plain:
            raise BadInput(f"--{name.replace('_', '-')} is not a setting of a study's trials")
    if phase.unit == "steps" and "steps" in plain:
        raise BadInput(
            "--steps follows from --phases and --phase: leave it out, or count phases in episodes or seconds"
        )
    for launcher in config.launchers:
        launcher_words(launcher)
    if config.population and config.launchers:
        raise BadInput("--launchers and --population: a population is one program on this machine")
    if config.population:
        run = fused_plan(config.env, config.settings)
    else:
        run = resolve(config.env, config.settings)
    make_algorithm(run)
    parts: dict[str, Any] = {"net.": run.net, "topology.": run.topology, "": run.algo}
    known = [f"{prefix}{f.name}" for prefix, part in parts.items() for f in fields(part)] + list(PLAIN)
    space = parse_space([f"{name}={text}" for name, text in config.space.items()], known)
    if not space:
        raise BadInput("nothing to search: give at least one --space, such as learning_rate=log(1e-5,1e-2)")
    if config.population:
        check_space(space)
        space = with_buckets(space)
    given = nest(config.settings)
    for name, domain in space.items():
        axis, _, bare = name.rpartition(".")
        fixed = given if name in PLAIN else given.get(axis or "algo", {})
        if bare in fixed:
            raise BadInput(f"--space {name}={written(domain)}: {name} is also fixed, at {fixed[bare]!r}")
        part = run.settings if name in PLAIN else parts[f"{axis}." if axis else ""]
        _check_values(name, bare, part, domain)
    from shoal.tuning.samplers import check_sampler  # imported late, because it loads Optuna

    check_sampler(config.sampler, space, config.trials)
    if config.warm_start and config.sampler == "grid":
        raise BadInput("--warm-start does not go with --sampler grid, which tries every configuration")
    confirm = _confirm(config.confirm)
    tune_seeds = tuple(range(config.seed, config.seed + config.seeds_per_trial))
    first = config.seed + FRESH if config.test_seed is None else config.test_seed
    test_seeds = tuple(range(first, first + (confirm.seeds if confirm else 0)))
    both = sorted({*tune_seeds} & {*test_seeds})
    if both:
        words = f"seeds {both[0]} to {both[-1]} are" if len(both) > 1 else f"seed {both[0]} is"
        raise BadInput(f"{words} for tuning and for testing: choose --test-seed {tune_seeds[-1] + 1} or above")
    until = run.settings.until_return
    goal = reward_threshold(config.env) if until is None else until
    plan = Plan(config, space, phase, confirm, tune_seeds, test_seeds, goal)
    plan.scheduler()
    return plan


def _axis(name: str) -> bool:
    return "." in name or name in PLAIN


def _check_values(name: str, bare: str, part: Any, domain: Domain) -> None:
    """Check that the setting accepts the ends of a range or every value of a list."""
    values = domain.values if isinstance(domain, Choice) else (domain.low, domain.high)
    for value in values:
        try:
            configs.replace(part, {bare: word(value)})  # as the trial will receive it
        except BadInput as error:
            raise BadInput(f"--space {name}={written(domain)}: {error}") from None


def _confirm(text: str) -> Confirm | None:
    if not text:
        return None
    match = re.fullmatch(r"top(\d+)x(\d+)", text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise BadInput(f"--confirm is {text!r}: expected topKxN, such as top3x10: the best 3, on 10 fresh seeds each")
    return Confirm(int(match[1]), int(match[2]))
