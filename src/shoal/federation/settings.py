"""Settings of a federation, and the part of them that the parent sends: what its children train and when they exchange.

Settings from the wire are plain data. A child accepts only known entries, validates them like a config file, and imports
nothing that the parent names unless its user trusts the parent.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from shoal.core import config as configs
from shoal.core.config import NonNegative, NonNegativeFloat, Positive
from shoal.core.errors import BadInput, nearest
from shoal.experiment import AXES, Plan, merge, resolve
from shoal.federation.datagrams import RULES as DATAGRAM_RULES
from shoal.federation.hogwild import check_in_place
from shoal.federation.rules import RULES
from shoal.federation.rules.rounds import RobustRounds

TOLD = ("algo", "net", "topology", "steps", "schedule_steps", "seed", "life_ends", "max_bad_updates")
# Settings that a child chooses for its own machine.
OWN = (
    "topology", "runtime", "actors", "envs", "learners", "backend", "seed", "checkpoint_every", "keep", "sinks",
    "metrics_every", "max_faults", "report_every",
)  # fmt: skip
UNLIMITED = 2**40  # environment steps of a child whose parent counts updates


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig:
    """When a child exchanges weights, always between two updates: whichever is due first. All 0 means every episode."""

    every_episodes: NonNegative = 0
    """exchange after this many episodes"""
    every_updates: NonNegative = 0
    """exchange after this many updates of the child"""
    every_seconds: NonNegativeFloat = 0.0
    """exchange after this many seconds"""
    overlap: bool = True
    """continue training during an exchange; otherwise the child waits for the answer, as in the thesis"""
    encoding: Literal["float32", "float16", "int8"] = "float32"
    """number format of the weights that are sent"""
    transport: Literal["websocket", "udp"] = "websocket"
    """transport of the weights"""

    @property
    def episodes(self) -> int:
        """Episodes between two exchanges; 0 if episodes do not matter."""
        return self.every_episodes or (0 if self.every_updates or self.every_seconds else 1)


@dataclass(frozen=True, kw_only=True)
class FederationConfig:
    """Settings of a parent, in addition to those of the run that its children train."""

    rule: str = "alpha_beta"
    """how the parent merges the children's weights; its settings are --rule.NAME, or --alpha and --beta for short"""
    updates: Positive | None = None
    """stop after this many updates of the parent's weights; the default budget is --steps over all children"""
    expect: Positive = 1
    """expected number of children; each child's schedules span its share of --steps"""
    weigh: Literal["equal", "steps"] = "equal"
    """weighting of contributions: equal, or by environment steps"""
    moments: Literal["local", "travel"] = "local"
    """optimiser moments: local keeps them with each child, travel exchanges them with the weights"""
    consistency: Literal["lock", "hogwild"] = "lock"
    """how pushes are averaged: lock, one after the other; hogwild, by several threads in place and without a lock (Hogwild!)"""
    eval_every: NonNegative = 100
    """updates between two evaluations of the parent's weights, on 25 episodes each, during training; 0 for none"""
    path_every: NonNegative = 0
    """updates between two snapshots of the parent's weights, which are kept in memory and evaluated after training; 0 for none"""
    every_episodes: NonNegative = 0
    """children exchange after this many episodes; by default after every update in which an episode ended"""
    every_updates: NonNegative = 0
    """children exchange after this many of their own updates"""
    every_seconds: NonNegativeFloat = 0.0
    """children exchange after this many seconds"""
    overlap: bool = True
    """children continue training during an exchange; otherwise they wait for the answer"""
    encoding: Literal["float32", "float16", "int8"] = "float32"
    """number format of the weights that are sent: int8 is 3.94 times smaller than float32"""
    transport: Literal["websocket", "udp"] = "websocket"
    """transport of the weights: udp is for a LAN and skips lost slices instead of resending them"""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise BadInput(f"unknown rule {self.rule!r}.{nearest(self.rule, RULES)} There are: {', '.join(RULES)}.")
        if self.moments == "travel" and issubclass(RULES[self.rule], RobustRounds):
            raise BadInput(
                f"--moments travel and --rule {self.rule}: moments are averaged, so a single child could spoil them; use local"
            )
        if self.consistency == "hogwild":
            check_in_place(self.rule)
            for wrong, what in (
                (self.transport == "udp", "--transport udp: slices are averaged as they arrive"),
                (self.moments == "travel", "--moments travel: moments are mixed one push at a time"),
            ):
                if wrong:
                    raise BadInput(f"--consistency hogwild and {what}")

    @property
    def exchange(self) -> dict[str, Any]:
        """The fields of `ExchangeConfig`, for the children."""
        return {name: getattr(self, name) for name in ExchangeConfig.__dataclass_fields__}


def rule_of(config: FederationConfig, fields: Mapping[str, Any]) -> Any:
    """Build the rule from its settings. `BadInput` for an unknown setting or a bad value."""
    return configs.build(RULES[config.rule], fields, "rule.")


def overlaid(
    stored: FederationConfig,
    stored_rule: Mapping[str, Any],
    given: FederationConfig | Mapping[str, Any] | None,
    rule: Mapping[str, Any] | None,
) -> tuple[FederationConfig, dict[str, Any]]:
    """(settings of the federation, settings of its rule): single fields `given` now replace the stored or default ones.

    A whole `FederationConfig` replaces all of them. The settings of a rule are kept while the rule's name is unchanged.
    Raises `BadInput` unless the result is valid.
    """
    config = given if isinstance(given, FederationConfig) else configs.replace(stored, given or {})
    kept = stored_rule if config.rule == stored.rule else {}
    fields = {name.replace("-", "_"): value for name, value in {**kept, **(rule or {})}.items()}
    rule_of(config, fields)
    return config, fields


def planned(env: Any, stored: dict[str, Any] | None, given: Mapping[str, Any], config: FederationConfig) -> Plan:
    """Resolve the run that the children train: a new one, or a `stored` one, which includes the `given` settings.

    The default budget of a new run is the tuned one for every expected child.
    """
    if stored is not None:
        return resolve(stored.pop("env") if env is None else env, stored)
    if env is None:
        raise BadInput("no environment: give an id such as LunarLander-v3, or --resume RUN")
    plan = resolve(env, {"eval_episodes": 500, **given})
    assert plan.settings.steps is not None
    if "steps" in given or config.expect == 1:
        return plan
    return dataclasses.replace(
        plan, settings=dataclasses.replace(plan.settings, steps=plan.settings.steps * config.expect)
    )


def check_datagrams(config: FederationConfig, plan: Plan, observed: int, *, dials: bool) -> None:
    """Raise `BadInput` for settings that UDP does not support: a datagram holds only weights."""
    algo, goal = plan.settings.algo, plan.settings.until_return
    for wrong, what in (
        (config.rule not in DATAGRAM_RULES, f"--rule {config.rule}: the rule does not tolerate missing slices"),
        (dials, "--children: a parent that dials has no address that datagrams could be sent to"),
        (config.encoding != "float32", f"--encoding {config.encoding}: datagrams carry float32"),
        (config.moments == "travel", "--moments travel: datagrams carry only weights"),
        (observed > 0, f"{algo}: it normalises observations, and datagrams carry no statistics"),
        (goal is not None, "--until-return: datagrams carry no returns of episodes; use --until-eval"),
    ):
        if wrong:
            raise BadInput(f"--transport udp and {what}")


def told(
    plan: Plan,
    config: FederationConfig,
    topology: Mapping[str, Any] | None = None,
    algo: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Settings that the welcome sends: environment, algorithm, net, topology, budget, seed, when to exchange.

    Of `topology` and `algo` only the explicitly given settings are sent: the defaults of the one depend on the child's machine,
    and those of the other on the child's topology. Without `algo`, all settings of the algorithm are sent.
    """
    whole = plan.as_dict()
    if algo is not None:
        names = {"name", *(name.replace("-", "_") for name in algo)}
        whole["algo"] = {name: value for name, value in whole["algo"].items() if name in names}
    whole["topology"] = {**topology, "name": whole["topology"]["name"]} if topology else None
    settings: dict[str, Any] = {"env": whole["env"], **{name: whole[name] for name in TOLD}}
    assert plan.settings.steps is not None
    if config.expect > 1 or config.updates is not None:
        settings["schedule_steps"] = plan.settings.schedule_steps or max(1, plan.settings.steps // config.expect)
    if config.updates is not None:
        settings["steps"] = UNLIMITED
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**settings, "exchange": config.exchange}))
    return plain


def understood(
    settings: Mapping[str, Any], own: Mapping[str, Any], child: str, *, trust: bool
) -> tuple[str, dict[str, Any], ExchangeConfig]:
    """(environment, settings of the run, when to exchange) from a parent's welcome and the child's own choices.

    Raises `BadInput` for unknown entries, for own choices that only the parent may make, and for import paths unless `trust`.
    """
    strange = [name for name in settings if name not in (*TOLD, "env", "exchange")]
    if strange or not isinstance(settings.get("env"), str) or not isinstance(settings.get("exchange", {}), dict):
        raise BadInput(f"the parent's settings do not describe a run: {', '.join(strange) or 'no environment'}")
    for name in own:
        axis = name.partition(".")[0]
        if axis.replace("-", "_") not in OWN:
            raise BadInput(f"--{name} is chosen by the parent; a child chooses {', '.join('--' + o for o in OWN[:6])}")
    given = {name: value for name, value in settings.items() if name not in ("env", "exchange") and value is not None}
    for axis in AXES:
        table = given.get(axis, {})
        if axis in given and not (isinstance(table, dict) and isinstance(table.get("name"), str)):
            raise BadInput(f"the parent's settings have no name for {axis}")
        _check_trusted(axis, table.get("name", ""), trust)
    _check_trusted("env", settings["env"], trust)
    given["seed"] = seed_of(int(given.get("seed", 0)), child)
    loose = merge(given, {"eval_episodes": 0, "sinks": ("jsonl",)}, own)
    exchange = configs.build(ExchangeConfig, settings.get("exchange", {}))
    if "report_every" not in own and (exchange.episodes or exchange.every_updates):
        loose["report_every"] = exchange.every_updates if not exchange.episodes else 1
    return settings["env"], loose, exchange


def _check_trusted(what: str, name: str, trust: bool) -> None:
    if ":" in name and not trust:
        raise BadInput(
            f"the parent names {what} {name!r}, which imports code on this machine; --trust-env allows it, if you trust the parent"
        )


def seed_of(seed: int, child: str) -> int:
    """A child's own seed, from the parent's seed and the child's name, so that no two children act alike."""
    return int.from_bytes(hashlib.sha256(f"{seed} {child}".encode()).digest()[:4], "big")
