"""Recipes: from a user's name for an environment to the batches that actors step.

An environment is named by an id (`LunarLander-v3`, `ALE/Pong-v5`, `Pong-v5`), an import path (`pkg.module:Name`, a
class or a callable), an entry point of the group `shoal.envs`, an Env class, or a callable that returns an Env.
Training uses EnvPool if it has the id with the same spaces as Gymnasium, else Gymnasium. Evaluation uses Gymnasium's own
environment. Ids that Gymnasium cannot build are evaluated in EnvPool too, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from shoal.core.algorithm import Algorithm
from shoal.core.errors import FROM_ENV, BadInput, UnknownEnv, nearest
from shoal.core.spec import EnvSpec
from shoal.core.starts import Starts
from shoal.envs import envpool as pool
from shoal.envs import masked, registry
from shoal.envs.batch import EnvBatch, EvalEnv
from shoal.envs.booster.task import Booster
from shoal.envs.cartpole import CartPole
from shoal.envs.gymnasium import GymnasiumBatch, GymnasiumSingle
from shoal.envs.jax_envs import JaxBatch, JaxEnv, JaxSingle, JudgedElsewhere, is_jax
from shoal.envs.masked import Masked
from shoal.envs.pendulum import Pendulum
from shoal.envs.spaces import Actions, Observations

BACKENDS = ("auto", "envpool", "gymnasium", "jax")
_WHOLE: dict[str, JaxEnv] = {"CartPole-v1": CartPole(), "Pendulum-v1": Pendulum()}
JAX_NATIVE: dict[str, Callable[[], JaxEnv]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "shoal/Booster-v0": Booster,
    "shoal/BoosterContinuous-v0": partial(Booster, continuous=True),
    "shoal/BoosterPlant-v0": partial(Booster, plant=True),
    "shoal/BoosterContinuousPlant-v0": partial(Booster, continuous=True, plant=True),
    **{name: partial(Masked, _WHOLE[whole], name, shown) for name, (whole, shown) in masked.IDS.items()},
}
JAX_FIRST = "shoal/"  # ids of environments that only Shoal has: written in JAX, so `auto` steps them as batches

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class EnvSource:
    """How to make an environment. Holds no live one, so that it can be sent to another process."""

    name: str
    target: Any  # an id, `pkg.module:Name`, a class, a callable, or a JaxEnv
    backend: str  # of training: envpool, gymnasium or jax
    judge: str = "gymnasium"  # of evaluation: gymnasium wherever it can build the environment
    known: EnvSpec | None = field(default=None, compare=False, repr=False)
    life_ends: bool = False  # in training, no value is bootstrapped across a lost life

    fresh = False  # episodes continue from unroll to unroll

    @property
    def native(self) -> bool:
        """Whether it steps without holding Python's lock, so that threads suffice for several actors."""
        return self.backend in ("envpool", "jax")

    @property
    def atari(self) -> bool:
        """Whether it is an Atari game with image observations."""
        named = _resolve(self.target)
        if not isinstance(named, str):
            return False
        if self.judge == "gymnasium":
            return registry.is_atari(named)
        return self.backend == "envpool" and pool.is_atari(registry.envpool_id(named))

    def spec(self) -> EnvSpec:
        """The shapes of observations and actions. Makes an environment, resets it and closes it, unless they are known."""
        if self.known is not None:
            return self.known
        if self.backend == "jax":
            return _probe_jax(self.name, self._jax())
        if self.backend == "envpool":
            return _probe_pool(self.name, self.target, self._pool_options())
        return _probe(self.name, self.make)

    def batch(self, size: int, seed: int, actor: int) -> EnvBatch:
        """`size` environments of actor `actor`; their randomness derives from (seed, actor, environment)."""
        if self.backend == "jax":
            return JaxBatch(self._jax(), size, seed, actor)
        if self.backend == "envpool":
            task = registry.envpool_id(self.target)
            return pool.EnvPoolBatch(self.name, task, size, seed, actor, self._pool_options(), self.life_ends)
        return GymnasiumBatch(self.name, self.make, size, seed, actor, self.life_ends)

    def single(self, render: bool = False) -> EvalEnv:
        """One environment for evaluation. `render` asks for frames; the result's `can_render` says whether it has any."""
        if self.judge == "jax":
            env = self._jax()
            return JaxSingle(env.judged if isinstance(env, JudgedElsewhere) else env)
        if self.judge == "envpool":
            return pool.EnvPoolSingle(self.name, registry.envpool_id(self.target), render)
        judge = self._judged()
        env = judge.make()
        if render and registry.offers_pictures(env):
            env.close()
            registry.draw_off_screen()
            env = judge.make(render=True)
        return GymnasiumSingle(self.name, env, registry.can_render(env))

    def _judged(self) -> EnvSource:
        """The recipe for evaluation: another id if policies trained on this one are judged elsewhere."""
        return replace(self, target=registry.judged_on(self.target)) if isinstance(self.target, str) else self

    def starts(self, algorithm: Algorithm, actors: int) -> tuple[Starts, ...]:
        """No samplers: the environments choose where fresh episodes begin."""
        return ()

    @property
    def helper(self) -> Callable[[Any], None]:
        return self.help

    def help(self, comm: Any) -> None:
        """Run an actor's helper process: call `serve(comm)` of the environment's class, if it has one."""
        made = _resolve(self.target)
        serve = getattr(registry.creator(made) if isinstance(made, str) else made, "serve", None)
        if serve is not None:
            serve(comm)

    def jax_env(self) -> JaxEnv | None:
        """The same environment written in JAX, for any `backend`; None if there is none."""
        if self.backend == "jax":
            return self._jax()
        known = JAX_NATIVE.get(self.target) if isinstance(self.target, str) else None
        return known() if known is not None else None

    def _jax(self) -> JaxEnv:
        if isinstance(self.target, str) and self.target in JAX_NATIVE:
            return JAX_NATIVE[self.target]()
        made = _resolve(self.target)
        env = made() if isinstance(made, type) or not is_jax(made) else made
        if not is_jax(env):
            raise TypeError(f"{self.name} made {type(env).__name__}, which lacks the methods of a JaxEnv")
        return env

    def make(self, render: bool = False) -> Any:
        """The Gymnasium environment itself, in its own coordinates."""
        made = _resolve(self.target)
        env = registry.make_by_id(made, render) if isinstance(made, str) else registry.make_by_call(made, render)
        registry.check_env_type(env)
        return env

    def _pool_options(self) -> dict[str, Any]:
        """Gymnasium's time limit as EnvPool's, so that both play the same game."""
        limit = registry.max_steps(str(_resolve(self.target))) if self.judge == "gymnasium" else None
        return {} if limit is None else {"max_episode_steps": limit}


@runtime_checkable
class Source(Protocol):
    """The source of a run's environments: an `EnvSource`, or an object with the same interface."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> Any: ...
    @property
    def backend(self) -> str: ...
    @property
    def fresh(self) -> bool:
        """Whether every unroll begins with a reset."""

    @property
    def native(self) -> bool: ...
    @property
    def atari(self) -> bool: ...
    def spec(self) -> EnvSpec: ...
    def batch(self, size: int, seed: int, actor: int) -> EnvBatch: ...
    def single(self, render: bool = False) -> EvalEnv: ...
    def starts(self, algorithm: Algorithm, actors: int) -> tuple[Starts, ...]: ...
    def jax_env(self) -> JaxEnv | None: ...
    @property
    def helper(self) -> Callable[[Any], None] | None:
        """The function that an actor's helper processes run, with their communicator; None if they have nothing to do."""


def find(target: Any, backend: str = "auto") -> Source:
    """The recipe of an environment, after making it once. Raises `BadInput` if it cannot be made or trained on."""
    if backend not in BACKENDS:
        raise BadInput(f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}.{nearest(backend, BACKENDS)}")
    if isinstance(target, Source) and not isinstance(target, EnvSource):
        return target
    if isinstance(target, EnvSource):
        return target if backend in ("auto", target.backend) else find(target.target, backend)
    if isinstance(target, str):
        point = next(iter(entry_points(group="shoal.envs", name=target)), None)
        if point is not None:
            return _find_object(target, point.value, backend)
        return _find_object(target, target, backend) if ":" in target else _find_id(target, backend)
    if not callable(target) and not is_jax(target):
        raise BadInput(f"environment is {target!r}; it must be an id, `pkg.module:Name`, an Env class or a callable")
    name = str(getattr(target, "__name__", type(target).__name__)).strip("<>")
    return _find_object(name, target, backend)


def own_id(source: Source) -> str | None:
    """The id under which Shoal knows this environment. None for a user's own, even one of the same name."""
    if isinstance(source.target, str) and ":" not in source.target:
        return source.name
    env = source.jax_env() if source.backend == "jax" else None
    known = None if env is None else JAX_NATIVE.get(env.spec.name)
    return env.spec.name if env is not None and known is not None and _kind(env) == _kind(known()) else None


def _kind(env: JaxEnv) -> tuple[Any, ...]:
    """The classes whose physics this is: two environments without fields of their own may compare equal."""
    return (Masked, env.shown, *_kind(env.env)) if isinstance(env, Masked) else (type(env),)


def names(pattern: str | None = None) -> list[tuple[str, str]]:
    """(id, backends) of every known environment; `pattern` is a part of the id, or has wildcards."""
    found: dict[str, list[str]] = {}
    for backend, ids in (("envpool", pool.ids()), ("gymnasium", registry.gymnasium_ids()), ("jax", list(JAX_NATIVE))):
        for name in ids:
            found.setdefault(name, []).append(backend)
    for point in entry_points(group="shoal.envs"):
        found.setdefault(point.name, []).append("entry point")
    wanted = (pattern or "").lower()
    glob = wanted if any(c in wanted for c in "*?[") else f"*{wanted}*"
    return sorted((name, ", ".join(backends)) for name, backends in found.items() if fnmatch(name.lower(), glob))


def _find_object(name: str, target: Any, backend: str) -> EnvSource:
    """The recipe for a class, a callable, a JaxEnv, or the import path of one."""
    source = EnvSource(name, target, "gymnasium")
    try:
        made = _resolve(target)
        if isinstance(made, str):
            return replace(_find_id(made, "gymnasium" if backend == "auto" else backend), name=name, target=target)
        env = made if is_jax(made) and not isinstance(made, type) else registry.make_by_call(made)
    except BadInput:
        raise
    except FROM_ENV as error:
        raise _unmade(name, error) from error
    if is_jax(env):
        if backend not in ("auto", "jax"):
            raise BadInput(f"environment {name!r} is written in JAX: its backend is 'jax', not {backend!r}")
        return EnvSource(name, target, "jax", judge="jax", known=_probe_jax(name, env))
    if backend not in ("auto", "gymnasium"):
        raise BadInput(f"environment {name!r} is a Python environment: its backend is 'gymnasium', not {backend!r}")
    return replace(source, known=_probe(name, lambda: _checked(env)))


def _find_id(name: str, backend: str) -> EnvSource:
    ours = registry.gymnasium_id(name)
    if backend == "jax" or (backend == "auto" and name.startswith(JAX_FIRST) and name in JAX_NATIVE):
        if name not in JAX_NATIVE:
            raise BadInput(f"environment {name!r} is not written in JAX; those that are: {', '.join(JAX_NATIVE)}")
        if registry.judged_on(name) != name:
            _say_where_it_is_judged(name)
        return EnvSource(name, name, "jax", known=JAX_NATIVE[name]().spec)  # ours: no need to try it
    if backend == "envpool" and not pool.installed():
        raise BadInput("backend 'envpool' needs EnvPool, which is not installed: pip install 'shoal[native]'")
    if backend == "auto" and not pool.installed():
        _say_what_is_missing()
    in_pool = backend != "gymnasium" and pool.has(registry.envpool_id(name))
    if ours is None and not in_pool:
        valid = {n for n, _ in names()} | {n.removeprefix("ALE/") for n in registry.gymnasium_ids()}
        where = "" if backend == "auto" else f" to {backend}"
        hint = nearest(name, valid) or " Name an environment of your own by its import path, pkg.module:Name."
        raise UnknownEnv(f"environment {name!r} is not known{where}.{hint}")
    if not in_pool:
        if backend == "envpool":
            raise BadInput(f"environment {name!r} is not known to EnvPool; Gymnasium has it")
        source = EnvSource(name, name, "gymnasium")
        return replace(source, known=_probe(name, source.make))
    return _find_native(name, ours, backend)


def _find_native(name: str, ours: str | None, backend: str) -> EnvSource:
    """The recipe for an id of EnvPool's; evaluates in Gymnasium if Gymnasium builds the same environment."""
    theirs: EnvSpec | None = None
    why = "Gymnasium has no such id"
    if ours is not None:
        try:
            theirs = _probe(name, partial(registry.make_by_id, ours))
        except BadInput as error:
            why = str(error)
    source = EnvSource(name, name, "envpool", judge="gymnasium" if theirs is not None else "envpool")
    known = source.spec()
    if theirs is not None and (theirs.obs, theirs.action) != (known.obs, known.action):
        if backend == "auto":
            return EnvSource(name, name, "gymnasium", known=theirs)
        why, theirs = "Gymnasium's has other spaces", None
        source = replace(source, judge="envpool")
    if theirs is None:
        log.warning("%s: evaluation will use EnvPool's environment too (%s)", name, why)
    return replace(source, known=known)


@cache
def _say_what_is_missing() -> None:
    log.warning(
        "EnvPool is not installed (pip install 'shoal[native]'): stepping Gymnasium's Python environments instead,"
        " about three times slower on LunarLander"
    )


@cache
def _say_where_it_is_judged(name: str) -> None:
    log.warning(
        "%s: synthetic data; trains on a surrogate, evaluates on the plant (%s)", name, registry.judged_on(name)
    )


def _resolve(target: Any) -> Any:
    """Gymnasium's id as a string, or the object behind an import path, or the object itself."""
    if not isinstance(target, str):
        return target
    if ":" not in target:
        return registry.gymnasium_id(target) or target
    try:
        return registry.import_object(target)
    except AttributeError:
        named = registry.gymnasium_id(target.partition(":")[2])  # Gymnasium's own way: module:Id-v0
        if named is None:
            raise
        return named


def _unmade(name: str, error: BaseException) -> BadInput:
    message = " ".join(str(error).split())[:300]
    return BadInput(f"environment {name!r} cannot be made: {type(error).__name__}: {message}")


def _checked(env: Any) -> Any:
    registry.check_env_type(env)
    return env


def _probe(name: str, make: Callable[[], Any]) -> EnvSpec:
    """Make a Gymnasium environment, reset it once and close it."""
    try:
        env = make()
        try:
            observations, actions = Observations(env.observation_space), Actions(env.action_space)
            registry.check_fits(observations.single(registry.first_observation(env)))
        finally:
            env.close()
    except BadInput as error:
        raise BadInput(f"environment {name!r}: {error}") from error
    except FROM_ENV as error:
        raise _unmade(name, error) from error
    return EnvSpec(name, observations.spec, actions.spec)


def _probe_pool(name: str, target: str, options: dict[str, Any]) -> EnvSpec:
    try:
        batch = pool.EnvPoolBatch(name, registry.envpool_id(target), 1, 0, 0, options)
        try:
            batch.reset()
        finally:
            batch.close()
    except BadInput as error:
        raise BadInput(f"environment {name!r}: {error}") from error
    except FROM_ENV as error:
        raise _unmade(name, error) from error
    return batch.spec


def _probe_jax(name: str, env: JaxEnv) -> EnvSpec:
    try:
        batch = JaxBatch(env, 1, 0, 0)
        first = batch.reset()
        registry.check_fits(first)
    except FROM_ENV as error:
        raise _unmade(name, error) from error
    shown = tuple(first.shape[1:])
    if batch.spec.obs.shape != shown:
        raise BadInput(f"environment {name!r} shows {shown}, its spec says {batch.spec.obs.shape}")
    return batch.spec
