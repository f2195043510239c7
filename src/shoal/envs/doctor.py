"""Diagnosis of environments: `shoal doctor ENV` prints the problems that `examine` finds and how to fix them.

Gymnasium's own checker comes first; then episodes are played with random actions and inspected. Levels: an `error`
breaks training, a `warning` makes it worse or irreproducible, `info` is worth knowing.
"""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple, cast

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from shoal.core.errors import FROM_ENV, BadInput, UnknownEnv
from shoal.envs import envpool as pool
from shoal.envs import registry
from shoal.envs.jax_envs import JaxEnv
from shoal.envs.rollouts import Episode, Played, play, same
from shoal.envs.source import EnvSource, find
from shoal.envs.spaces import Actions, Observations

MANY_STEPS = 100_000  # an episode longer than this is taken to have no end
SLOW = 5e-3  # seconds per step, on average
SPIKE = 20e-3  # seconds: the slowest hundredth of the steps
MATTERS_OF_TASTE = ("infinity", "symmetric", "normalized", "render", "equal", "spec")  # in Gymnasium's warnings


class Finding(NamedTuple):
    level: str  # error, warning or info
    what: str
    fix: str


def examine(target: Any, seconds: float = 10.0) -> list[Finding]:
    """Everything found about an environment, worst first. Plays for at most about `seconds`."""
    try:
        source = _source(target)
    except UnknownEnv:
        raise  # there is nothing to examine
    except BadInput as error:
        return [Finding("error", str(error), "Correct the name, or make the constructor and the first reset succeed.")]
    if source is None:
        return [Finding("info", f"{target} is one of EnvPool's, which only EnvPool can make", "Nothing to do.")]
    found = _sendable(source)
    if source.backend == "jax":
        found += _hashable(source)
        return _sorted(found + _finite_alone(source, seconds))
    try:
        env = source.make()
    except FROM_ENV as error:
        return [Finding("error", f"it cannot be made: {_line(error)}", "Let the constructor work without arguments.")]
    try:
        found += _spaces(env) + _checker(source)
        played = play(env, seconds, MANY_STEPS)
        found += _protocol(played) or _behaviour(env, played)
    finally:
        env.close()
    return _sorted(found)


def _source(target: Any) -> EnvSource | None:
    """The recipe, without the checks of `find`, which stops at the first mistake; None if only EnvPool has it."""
    if isinstance(target, EnvSource):
        return target
    if isinstance(target, str) and ":" not in target:
        if registry.gymnasium_id(target) is not None:
            return EnvSource(target, target, "gymnasium")
        if pool.has(registry.envpool_id(target)):
            return None
        return cast(EnvSource, find(target))
    if isinstance(target, str):
        try:
            made = registry.import_object(target)
        except FROM_ENV as error:
            raise BadInput(f"environment {target!r} cannot be imported: {_line(error)}") from error
    else:
        made = target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", type(target).__name__)).strip("<>")
    python = isinstance(made, type) and issubclass(made, gymnasium.Env)
    if not python and (isinstance(made, JaxEnv) or hasattr(made, "max_steps")):
        return cast(EnvSource, find(target))
    return EnvSource(name, target, "gymnasium")


def _sendable(source: EnvSource) -> list[Finding]:
    try:
        cloudpickle.dumps(source)
    except FROM_ENV as error:
        fix = "Name it by its import path, pkg.module:Name, or keep open files, locks and sockets out of the recipe."
        return [Finding("warning", f"it cannot be sent to another process (runtime processes): {_line(error)}", fix)]
    return []


def _hashable(source: EnvSource) -> list[Finding]:
    try:
        hash(source.jax_env())
    except TypeError as error:
        fix = "Make it a frozen dataclass or a NamedTuple of numbers, so that equal environments compile once."
        return [Finding("error", f"the JAX environment is not hashable: {error}", fix)]
    return []


def _finite_alone(source: EnvSource, seconds: float) -> list[Finding]:
    """Check that a JAX environment's observations and rewards are finite; it is pure, so little else can be wrong."""
    env, rng = source.single(), np.random.default_rng(0)
    spec, until = env.spec, time.monotonic() + seconds
    env.reset(0)
    for _ in range(1000):
        action = (
            rng.uniform(-1, 1, spec.action.shape) if spec.action.dtype == np.float32 else np.zeros(spec.action.shape)
        )
        obs, reward, _, _ = env.step(action.astype(spec.action.dtype))
        if not (np.isfinite(obs).all() and np.isfinite(reward)):
            return [_not_finite("observation or reward")]
        if time.monotonic() > until:
            break
    return []


def _spaces(env: Any) -> list[Finding]:
    found = []
    for make, space in ((Observations, env.observation_space), (Actions, env.action_space)):
        try:
            make(space)
        except BadInput as error:
            found.append(Finding("error", str(error), "Encode it as numbers of a fixed width, for instance in a Box."))
    return found


def _checker(source: EnvSource) -> list[Finding]:
    """The complaints of Gymnasium's `check_env`, each with a level."""
    api = "Follow Gymnasium's Env: https://gymnasium.farama.org/api/env/"
    found: list[Finding] = []
    env = source.make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env.unwrapped, skip_render_check=True)
        except FROM_ENV as error:
            found.append(Finding("error", f"check_env: {_line(error)}", api))
        finally:
            env.close()
    for text in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        plain = text.replace("\x1b[33m", "").replace("\x1b[0m", "").removeprefix("WARN: ")
        taste = any(word in plain.lower() for word in MATTERS_OF_TASTE)
        level, fix = ("info", "A matter of taste.") if taste else ("warning", api)
        found.append(Finding(level, f"check_env: {plain}", fix))
    return found


def _protocol(played: Played) -> list[Finding]:
    """Mistakes that make further checks meaningless."""
    if played.failure is None:
        return []
    if played.raised:
        return [Finding("error", played.failure, "Fix the exception; during training the episode would be dropped.")]
    return [
        Finding("error", played.failure, "reset returns (obs, info); step (obs, reward, terminated, truncated, info).")
    ]


def _behaviour(env: Any, played: Played) -> list[Finding]:
    episodes = played.episodes
    found = _repeats(env) + _numbers(env, episodes) + _endings(env, played) + _speed(played.seconds)
    if _resets_itself(played):
        fix = "Return the last observation of the episode with terminated, and leave the reset to the caller."
        found.append(
            Finding("error", "it resets itself in the step that ends an episode: the last observation is lost", fix)
        )
    elif played.goes_on:
        what = "it can be stepped on after terminated; Shoal always resets there"
        found.append(Finding("info", what, "Nothing to do, unless `terminated` was meant for something else."))
    return found


def _repeats(env: Any) -> list[Finding]:
    """Whether the same seed and the same actions give the same episode twice."""
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(200)]
    runs = []
    for _ in range(2):
        trace: list[Any] = [env.reset(seed=7)[0]]
        for action in actions:
            obs, reward, terminated, truncated, _ = env.step(action)
            trace.append((obs, reward, terminated, truncated))
            if terminated or truncated:
                break
        runs.append(trace)
    first, second = runs
    if not same(first[0], second[0]):
        fix = "Call super().reset(seed=seed) and draw every random number of the start from self.np_random."
        return [Finding("warning", "reset(seed=7) twice gives different first observations: it ignores the seed", fix)]
    if len(first) != len(second) or not all(same(a, b) for a, b in zip(first, second, strict=True)):
        fix = "Draw every random number of step from self.np_random, and keep nothing from one episode to the next."
        return [
            Finding("warning", "the same seed and actions do not give the same episode: it is not deterministic", fix)
        ]
    return []


def _numbers(env: Any, episodes: list[Episode]) -> list[Finding]:
    found = []
    rewards = np.array([reward for episode in episodes for reward in episode.rewards], np.float64)
    if any(episode.bad_obs for episode in episodes):
        found.append(_not_finite("observation"))
    if not np.isfinite(rewards).all():
        found.append(_not_finite("reward"))
    outside = next((episode.outside for episode in episodes if episode.outside), None)
    if outside is not None:
        fix = "Widen the observation_space, or cast and clip the observation to it."
        found.append(Finding("warning", f"an observation does not belong to observation_space: {outside}", fix))
    size = np.abs(rewards[np.isfinite(rewards)])
    largest = float(size.max(initial=0.0))
    if largest > 1e4 or 0 < largest < 1e-4:
        fix = "Scale it to about 1, or let the algorithm normalise rewards."
        found.append(Finding("warning", f"the largest reward is {largest:.3g} in size", fix))
    elif largest == 0:
        found.append(
            Finding("info", "random play never saw a reward", "Give a denser reward if learning does not start.")
        )
    return found


def _not_finite(what: str) -> Finding:
    return Finding(
        "error",
        f"an {what} is NaN or infinite" if what[0] == "o" else f"a {what} is NaN or infinite",
        "Guard divisions, logarithms and square roots; end the episode when the state leaves its range.",
    )


def _endings(env: Any, played: Played) -> list[Finding]:
    done = [episode for episode in played.episodes if episode.terminated or episode.truncated]
    limited = env.spec is not None and env.spec.max_episode_steps is not None
    if not done:
        steps = sum(len(episode.rewards) for episode in played.episodes)
        level = "warning" if steps >= MANY_STEPS else "info"
        fix = "Give it a time limit: gymnasium.wrappers.TimeLimit, or max_episode_steps where it is registered."
        return [Finding(level, f"no episode ended within {steps:,} steps of random play", fix)] if not limited else []
    lengths = {len(episode.rewards) for episode in done}
    always = len(done) >= 3 and len(lengths) == 1 and all(e.terminated and not e.truncated for e in done)
    if always and lengths != {1} and not limited:
        fix = "If that is a time limit, return truncated=True instead: a truncated episode still bootstraps its value."
        what = f"every episode ends with terminated after exactly {lengths.pop()} steps, which looks like a time limit"
        return [Finding("warning", what, fix)]
    return []


def _resets_itself(played: Played) -> bool:
    """Whether the observation returned at an end is already the first one of the next episode."""
    ends = [episode for episode in played.episodes if episode.terminated and len(episode.rewards) > 1]
    if any(episode.has_final for episode in ends):
        return True
    if len(ends) < 3 or not played.goes_on or len(played.starts) < 3:
        return False
    low, high = np.min(played.starts, axis=0), np.max(played.starts, axis=0)
    margin = 0.05 * (high - low) + 1e-6

    def begins(obs: np.ndarray) -> bool:
        return bool(np.all((obs >= low - margin) & (obs <= high + margin)))

    looks_new = sum(begins(e.last) for e in ends) / len(ends)  # a start may lie outside the few that were seen
    return looks_new >= 0.8 and sum(begins(e.before_last) for e in ends) <= len(ends) / 2


def _speed(seconds: list[float]) -> list[Finding]:
    warm = seconds[1:] or seconds  # the very first step may load or compile something
    mean, slowest = float(np.mean(warm)), float(np.quantile(warm, 0.99))
    what = f"a step takes {mean * 1e6:,.0f} us on average, the slowest hundredth {slowest * 1e6:,.0f} us and more"
    if mean > SLOW:
        return [Finding("warning", what, "Train with --runtime processes and as many actors as cores; profile `step`.")]
    if slowest > max(SPIKE, 20 * mean):
        fix = "Some steps stall: reading files, allocating or collecting garbage. Move that out of `step`."
        return [Finding("warning", f"{what}: there are spikes", fix)]
    return [Finding("info", what, "Nothing to do.")]


def _sorted(found: list[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.level))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
