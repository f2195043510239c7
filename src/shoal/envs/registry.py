"""Environments by name: the ids of Gymnasium and ale-py, and how to make one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import warnings
from functools import cache
from typing import Any

import gymnasium
import numpy as np

from shoal.envs import masked
from shoal.envs.booster import ids as booster


@cache
def _register_atari() -> None:
    """Add ale-py's games to Gymnasium's registry, if ale-py is installed."""
    if importlib.util.find_spec("ale_py") is not None:
        import ale_py

        gymnasium.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner between the run's own lines


def _register_own() -> None:
    booster.register()
    masked.register()


def _might_be_atari(name: str) -> bool:
    return name.startswith("ALE/") or name.endswith(("-v5", "-v4", "-v0"))


def gymnasium_ids() -> list[str]:
    """Every id in Gymnasium's registry, Shoal's own among them."""
    _register_own()
    _register_atari()
    return sorted(str(name) for name in gymnasium.registry)


def gymnasium_id(name: str) -> str | None:
    """Gymnasium's name for the environment that EnvPool calls `name`, None if Gymnasium has none."""
    if name.startswith(booster.NAMESPACE):
        _register_own()
    if name not in gymnasium.registry and _might_be_atari(name):
        _register_atari()
    if name in gymnasium.registry:
        return name
    return f"ALE/{name}" if f"ALE/{name}" in gymnasium.registry else None


def reward_threshold(name: str) -> float | None:
    """The return at which Gymnasium counts this environment as solved; None if it names none, or does not have it."""
    known = gymnasium_id(name)
    return None if known is None else gymnasium.registry[known].reward_threshold


def envpool_id(name: str) -> str:
    """EnvPool's name for the environment that Gymnasium calls `name`."""
    return name.removeprefix("ALE/")


def max_steps(name: str) -> int | None:
    """The time limit that Gymnasium gives the environment `name`."""
    return None if is_atari(name) else gymnasium.registry[name].max_episode_steps


def is_atari(name: str) -> bool:
    """Whether Gymnasium's `name` is an Atari game shown as pictures."""
    spec = gymnasium.registry[name]
    return "ale_py" in str(spec.entry_point) and spec.kwargs.get("obs_type", "rgb") != "ram"


def judged_on(name: str) -> str:
    """The id in which policies trained on `name` are evaluated: the booster's are judged on its plant."""
    return booster.JUDGED_ON.get(name, name)


def entry_point(name: str) -> str | None:
    """The import path behind one of Gymnasium's ids; None if its entry point is not a path."""
    point = gymnasium.registry[name].entry_point
    return point if isinstance(point, str) else None


def creator(name: str) -> Any:
    """The class or function behind one of Gymnasium's ids; None if there is no such id."""
    spec = gymnasium.registry.get(name)
    point = None if spec is None else spec.entry_point
    return gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point


def make_by_id(name: str, render: bool = False) -> Any:
    """Gymnasium's environment `name`; Atari games with the preprocessing of EnvPool."""
    extra: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    if is_atari(name):
        from shoal.envs.atari import make_atari

        return make_atari(name, extra)
    warnings.filterwarnings("ignore", message=".*is out of date.*")  # the user chose this version by name
    return gymnasium.make(name, disable_env_checker=True, **extra)


def import_object(path: str) -> Any:
    """The object behind `pkg.module:Name`. Also imports from the working folder.

    Raises ModuleNotFoundError if there is no such module, AttributeError if it has no such name.
    """
    module, _, name = path.partition(":")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def make_by_call(target: Any, render: bool = False) -> Any:
    """The environment that a class or a callable makes. `render_mode` is passed if the signature takes it."""
    if render and _takes_render_mode(target):
        return target(render_mode="rgb_array")
    return target()


def _takes_render_mode(target: Any) -> bool:
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # some callables have no readable signature
        return False
    return "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def draw_off_screen() -> None:
    """Make SDL render to arrays: otherwise it looks for a display and complains if there is none."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def can_render(env: Any) -> bool:
    """Whether `render()` of this environment, as it was made, returns frames."""
    return getattr(env, "render_mode", None) == "rgb_array"


def offers_pictures(env: Any) -> bool:
    return "rgb_array" in (getattr(env, "metadata", None) or {}).get("render_modes", [])


def check_env_type(env: Any) -> None:
    """Raise TypeError unless `env` is a Gymnasium environment."""
    if not isinstance(env, gymnasium.Env):
        raise TypeError(f"made {type(env).__name__}, which is not a gymnasium.Env")


def first_observation(env: Any) -> Any:
    """Reset once, as a run will. Raises ValueError if the answer is not (observation, info)."""
    answer = env.reset(seed=0)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ValueError(f"reset returned {type(answer).__name__}, not a tuple (observation, info)")
    return answer[0]


def check_fits(flat: np.ndarray) -> None:
    """Raise ValueError if a first observation is not finite."""
    if not np.isfinite(flat).all():
        raise ValueError("the first observation is not finite")
