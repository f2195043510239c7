"""From settings to a plan: looks up names, fills in defaults, and checks everything before a run starts."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from shoal.algos import ALGOS
from shoal.core import config as configs
from shoal.core.algorithm import Algorithm
from shoal.core.config import NonNegative, NonNegativeFloat, Positive
from shoal.core.errors import BadInput, nearest
from shoal.core.spec import EnvSpec
from shoal.envs.registry import import_object
from shoal.envs.source import EnvSource, Source, find, own_id
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.continuous import CONTINUOUS_NETS
from shoal.nets.q_network import QNetwork
from shoal.process.limits import cores
from shoal.runtimes import RUNTIMES
from shoal.runtimes.session import Runtime
from shoal.topologies import TOPOLOGIES
from shoal.topologies.topology import Topology
from shoal.tuned import tuned

AXES = ("algo", "topology", "runtime", "net")
NETS: dict[str, Any] = {"actor_critic": ActorCritic, "q_network": QNetwork, **CONTINUOUS_NETS}
_SIZES = ("many_learners", "each_learns", "acting", "unrolls")
# Attributes that a user's own class must declare besides its Config, and where they are documented.
DECLARED = {
    "algorithm": ("about", "net_name", "usual_topology", "topologies", "replays", "if_trained", "groups", "adopt"),
    "topology": (*_SIZES, "about", "apart", "mixed", "usual", "if_parallel", "one_optimiser", "program"),
    "runtime": ("about", "provides", "overlaps", "needs_pure_env", "spawns", "join", "places", "step_timeout"),
}
WHERE_DECLARED = {
    "algorithm": "shoal.core.algorithm.Algorithm",
    "topology": "shoal.topologies.topology.Topology",
    "runtime": "shoal.runtimes.session.Runtime",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run, besides those of its algorithm, topology, runtime and net."""

    algo: str = "ppo"
    """algorithm: a name (`shoal algos`) or an import path pkg.module:Class"""
    topology: str | None = None
    """how actors and learners are connected: a name (`shoal topologies`) or an import path; by default the algorithm's usual one,
    or sequential under fused"""
    runtime: str | None = None
    """where the roles run: a name (`shoal runtimes`); by default threads, or processes for environments written in Python and for
    several workers that each learn from a replay"""
    net: str | None = None
    """net of the algorithm: actor_critic, q_network, deterministic, squashed_gaussian, or an import path pkg.module:Class;
    by default the one it needs"""
    backend: Literal["auto", "envpool", "gymnasium", "jax"] = "auto"
    """library that steps the environments: EnvPool if it has the id, else Gymnasium; jax for JAX-native ones (fused uses it)"""
    actors: Positive | None = None
    """number of actors; by default the tuned number, or one per core"""
    envs: Positive | None = None
    """environments of each actor; by default the tuned total, divided by the number of actors unless each has its own replay"""
    learners: Positive = 1
    """number of learners that share the gradients; more than one with topology actor_learner"""
    steps: Positive | None = None
    """budget of environment steps, over which schedules run; by default the tuned number"""
    schedule_steps: Positive | None = None
    """environment steps over which schedules run, such as a falling learning rate; by default the budget"""
    until_return: float | None = None
    """stop when the mean of the last 100 training episodes reaches this"""
    until_eval: float | None = None
    """stop when evaluations during training, of 25 fresh episodes each, reach this three times in a row; keep that policy"""
    until_eval_by: Literal["greedy", "sampled"] = "greedy"
    """whether those evaluations use greedy or sampled actions"""
    life_ends: bool | None = None
    """Atari: in training, no value is bootstrapped across a lost life; the episode and its score continue; by default as tuned"""
    seed: NonNegative = 0
    """seed of all random numbers"""
    eval_episodes: NonNegative = 100
    """episodes in Gymnasium's own environment after training, both greedy and sampled; 0 for none"""
    eval_limit: Positive = 30_000
    """steps after which an episode of an evaluation is cut, for environments that have no time limit"""
    checkpoint_every: NonNegativeFloat = 30.0
    """seconds between two checkpoints; one more is written at the end"""
    keep: Positive = 3
    """number of checkpoints to keep, besides the best"""
    sinks: tuple[str, ...] = ("jsonl", "tensorboard")
    """where metrics go: jsonl, tensorboard, wandb, mlflow"""
    metrics_every: NonNegativeFloat = 0.25
    """seconds between two lines of metrics, at least; each summarises the time since the previous one; 0 writes every update"""
    max_faults: NonNegative = 20
    """faults of environments or actors that a run survives before it gives up"""
    max_bad_updates: Positive = 10
    """updates in a row that may fail, because a loss, a gradient or a weight is not finite, before the run gives up"""
    report_every: NonNegative = 0
    """updates between two reports of the learner's state, for callbacks that judge it; 0 leaves it to the clock"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, resolved: every default filled in, every name looked up."""

    settings: Settings
    source: Source
    spec: EnvSpec
    algo: Any
    topology: Any
    runtime: Any
    net: Any
    algo_class: type[Algorithm]
    topology_class: type[Topology]
    runtime_class: type[Runtime]
    net_class: Callable[..., Any]
    notes: tuple[str, ...] = ()  # choices made for the user that are worth a line

    @property
    def actors(self) -> int:
        assert self.settings.actors is not None
        return self.settings.actors

    @property
    def envs(self) -> int:
        assert self.settings.envs is not None
        return self.settings.envs

    @property
    def named(self) -> bool:
        """Whether `config.json` names the environment such that another process finds it again."""
        return isinstance(self.source.target, str) or _import_path(self.source.target) is not None

    def as_dict(self) -> dict[str, Any]:
        """The contents of `config.json`, which `--config` can read again."""
        flat = configs.as_dict(self.settings)
        for axis in AXES:
            flat[axis] = {"name": flat[axis], **configs.as_dict(getattr(self, axis))}
        return {"env": _env_name(self.source), **flat, "spec": msgspec.to_builtins(self.spec)}


def _env_name(source: Source) -> str:
    """A name that finds the environment again: its id or import path; if it has neither, only its display name."""
    return source.target if isinstance(source.target, str) else _import_path(source.target) or source.name


def _import_path(target: Any) -> str | None:
    """`pkg.module:Name` of a class or function; None if another program would not find it there."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    importable = found is target and module != "__main__"  # another program has another __main__
    return f"{module}:{name}" if importable else None


def read_file(path: str | Path) -> dict[str, Any]:
    """Read settings from a .toml or .json file. Tables `algo`, `topology`, `runtime`, `net` have a `name` and its fields."""
    import tomllib  # late: most runs have no such file

    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read config {str(path)!r}: {error.strerror}") from None
    try:
        if path.suffix == ".toml":
            return tomllib.loads(raw.decode())
        if path.suffix == ".json":
            return msgspec.json.decode(raw, type=dict[str, Any])
    except (tomllib.TOMLDecodeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"config {str(path)!r} cannot be read: {error}") from None
    raise BadInput(f"config {str(path)!r}: the ending must be .toml or .json")


def nest(loose: Mapping[str, Any]) -> dict[str, Any]:
    """Bring flags (`algo`, `algo.clip`), files (tables with a `name`) and Python (either, or config objects) into one form."""
    plain: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {axis: {} for axis in AXES}
    for key, value in loose.items():
        axis, dot, field = key.replace("-", "_").partition(".")
        if dot and axis not in AXES:
            raise BadInput(f"unknown setting --{key}: {axis!r} has no fields; {', '.join(AXES)} have")
        if dot:
            tables[axis][field] = value
        elif axis in AXES and isinstance(value, Mapping):
            tables[axis] |= value
        elif axis in AXES and dataclasses.is_dataclass(value) and not isinstance(value, type):
            tables[axis] |= {"name": _name_of(axis, value), **configs.as_dict(value)}
        elif axis in AXES:
            tables[axis]["name"] = value
        else:
            plain[axis] = value
    return {**plain, **{axis: table for axis, table in tables.items() if table}}


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge layers; later ones win, field by field. Another name on an axis drops the earlier layers' fields of that axis."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in nest(layer).items():
            if key not in AXES:
                merged[key] = value
                continue
            before = merged.get(key, {})
            if "name" in value and value["name"] != before.get("name", value["name"]):
                before = {}
            merged[key] = {**before, **value}
    return merged


def resolve(env: Any, loose: Mapping[str, Any], trained: bool = False) -> Plan:
    """A plan for `env`: an id, an import path, an Env class or a callable. Raises `BadInput` for the first mistake.

    `trained`: the run begins with trained weights.
    """
    given = nest(loose)
    names = {axis: given.get(axis, {}).get("name") for axis in AXES}
    settings = configs.build(Settings, {**{k: v for k, v in given.items() if k not in AXES}, **_plain_names(names)})
    notes: list[str] = []
    algo_class = look_up(names["algo"] or settings.algo, ALGOS, "algorithm")
    net_name = settings.net or algo_class.net_name
    net_class = look_up(names["net"] or net_name, NETS, "net")
    pure = settings.runtime is not None and runtime_of(settings.runtime).needs_pure_env
    source = find(env, "jax" if pure and settings.backend == "auto" else settings.backend)
    spec = source.spec()
    topology_name = settings.topology or ("sequential" if pure else algo_class.usual_topology)
    topology_class = look_up(names["topology"] or topology_name, TOPOLOGIES, "topology")
    # Workers that each learn from a replay. Each has as many environments as one alone, since smaller batches of
    # environments would cost it more time per step than the others save.
    many = topology_class.each_learns and algo_class.replays and (settings.actors or 1) > 1
    runtime_name = settings.runtime or ("processes" if many or not source.native else "threads")
    if settings.runtime is None and not source.native:
        notes.append(
            f"{source.name} is written in Python, so its actors run as processes (--runtime threads for threads)"
        )
    runtime_class = runtime_of(runtime_name)
    fitting = algo_class.topologies
    if topology_name in TOPOLOGIES and fitting and topology_name not in fitting:
        raise BadInput(
            f"algorithm {settings.algo!r} does not fit topology {topology_name!r}; it fits {', '.join(fitting)}"
        )
    if settings.learners != 1 and not topology_class.many_learners:
        several = ", ".join(name for name, entry in TOPOLOGIES.items() if entry.many_learners)
        raise BadInput(
            f"--learners is {settings.learners}: topology {topology_name!r} has one learner; several need --topology {several}"
        )
    if settings.until_eval is None and settings.until_eval_by != "greedy":
        raise BadInput(f"--until-eval-by is {settings.until_eval_by!r}: it goes with --until-eval")
    if settings.until_eval is not None and not runtime_class.spawns:
        raise BadInput(
            "--until-eval starts a process beside the training, which a rank of an MPI job cannot; use threads"
        )
    table = tuned(own_id(source), settings.algo, spec.obs.is_image, source.atari)
    source, life_ends = _lives(source, settings.life_ends, table)
    fields = {axis: {k: v for k, v in given.get(axis, {}).items() if k != "name"} for axis in AXES}
    runtime = _config(runtime_class, fields["runtime"], "runtime")
    actors = (
        settings.actors
        or runtime_class.places(runtime, settings.learners)
        or -(-table.get("actors", 0) // settings.learners) * settings.learners
        or even_actors(cores(), settings.learners, table["total_envs"])
    )
    most = table.get("worker_envs" if topology_class.each_learns else "total_envs", table["total_envs"])
    settings = dataclasses.replace(
        settings,
        topology=topology_name,
        runtime=runtime_name,
        net=net_name,
        backend=cast(Any, source.backend),
        actors=actors,
        envs=settings.envs
        or max(1, min(most, table["total_envs"] // (1 if many else topology_class.acting or actors))),
        steps=settings.steps or table.get("steps_on", {}).get(topology_name, table["steps"]),
        life_ends=life_ends,
    )
    usual = _usual(table, algo_class, topology_name, topology_class) if settings.algo in ALGOS else {}
    return Plan(
        settings=settings,
        source=source,
        spec=spec,
        algo=_config(algo_class, {**usual, **(algo_class.if_trained if trained else {}), **fields["algo"]}, "algo"),
        topology=_overlap(_config(topology_class, fields["topology"], "topology"), topology_class, runtime_class),
        runtime=runtime,
        net=_config(
            net_class, {**(table.get("net", {}) if net_name == algo_class.net_name else {}), **fields["net"]}, "net"
        ),
        algo_class=algo_class,
        topology_class=topology_class,
        runtime_class=runtime_class,
        net_class=net_class,
        notes=tuple(notes),
    )


def _lives(source: Source, asked: bool | None, table: Mapping[str, Any]) -> tuple[Source, bool]:
    """(the source, whether a lost life counts as an end in training)."""
    if asked and not source.atari:
        raise BadInput(f"--life-ends: {source.name} is not an Atari game, and only those count lives")
    ends = table.get("life_ends", False) if asked is None else asked
    if isinstance(source, EnvSource):
        return dataclasses.replace(source, life_ends=ends), ends
    if asked:
        raise BadInput(f"--life-ends: {source.name} is a source of its own, which decides where episodes end")
    return source, False


def even_actors(cores: int, learners: int, envs: int) -> int:
    """One actor per core, or the nearest lower number that divides `envs` and is a multiple of `learners`."""
    fitting = [n for n in range(learners, cores + 1) if envs % n == 0 and n % learners == 0]
    return max(fitting, default=max(learners, min(cores, envs)))


def _plain_names(names: Mapping[str, Any]) -> dict[str, str]:
    """The axes by name, even if a class was given."""
    for axis, name in names.items():
        if name is not None and not isinstance(name, str | type):
            raise BadInput(f"--{axis} is {name!r}: expected a name, an import path pkg.module:Class or a class")
    return {
        axis: name if isinstance(name, str) else f"{name.__module__}:{name.__qualname__}"
        for axis, name in names.items()
        if name is not None
    }


def join(loose: Mapping[str, Any]) -> None:
    """Call before `resolve`: if the runtime consists of many started processes, returns only in the one that drives the run."""
    if (name := loose.get("runtime", {}).get("name")) is not None:
        runtime_of(name).join()


def runtime_of(name: Any) -> type[Runtime]:
    """A runtime by its name or import path."""
    found: type[Runtime] = look_up(name, RUNTIMES, "runtime")
    return found


def look_up(name: Any, registry: Mapping[str, Any], what: str) -> Any:
    """A part of a run by its name or import path; a class is returned as it is, after a check."""
    if isinstance(name, type):
        return _complete(name, what, name.__name__)
    if name in registry:
        return registry[name]
    if ":" not in name:
        raise BadInput(f"unknown {what} {name!r}.{nearest(name, registry)} There are: {', '.join(registry)}.")
    try:
        found = import_object(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"cannot import {what} {name!r}: {error}") from None
    return _complete(found, what, name)


def _complete(found: Any, what: str, name: str) -> Any:
    """`found`, after checking that it declares everything in its protocol."""
    if not hasattr(found, "Config"):
        raise BadInput(f"{what} {name!r} has no Config: a frozen dataclass of its settings")
    missing = [entry for entry in DECLARED.get(what, ()) if not hasattr(found, entry)]
    if missing:
        raise BadInput(f"{what} {name!r} does not declare {', '.join(missing)}: {WHERE_DECLARED[what]} documents them")
    return found


def _name_of(axis: str, config: Any) -> str:
    """The name on an axis whose config has this type."""
    registries: dict[str, Mapping[str, Any]] = {
        "algo": ALGOS,
        "topology": TOPOLOGIES,
        "runtime": RUNTIMES,
        "net": NETS,
    }
    for name, entry in registries.get(axis, {}).items():
        if entry.Config is type(config):
            return name
    raise BadInput(f"{type(config).__name__} is not the settings of any {axis}")


def _config(owner: Any, values: Mapping[str, Any], axis: str) -> Any:
    return configs.build(owner.Config, values, f"{axis}.")


def _usual(table: Mapping[str, Any], algo_class: Any, topology: str, topology_class: Any) -> dict[str, Any]:
    """Default settings: the tuned ones, then the topology's own (for on-policy algorithms), then those tuned for both."""
    own = {} if algo_class.replays else topology_class.usual
    names = {field.name for field in dataclasses.fields(algo_class.Config)}
    both = table.get("algo_on", {}).get(topology, {})
    return {**table.get("algo", {}), **{name: value for name, value in own.items() if name in names}, **both}


def _overlap(config: Any, topology_class: Any, runtime_class: Any) -> Any:
    """Turn on overlap and adjustment if roles run at the same time, unless the user has set them."""
    unset = [name for name in topology_class.if_parallel if getattr(config, name) is None]
    return dataclasses.replace(config, **dict.fromkeys(unset, runtime_class.overlaps)) if unset else config
