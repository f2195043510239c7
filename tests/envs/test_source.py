"""Finding an environment by whatever a user calls it, and one clear line when that fails."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import gymnasium
import numpy as np
import pytest

from shoal.core.errors import BadInput
from shoal.envs import envpool, source
from shoal.envs.batch import seed_of
from shoal.envs.source import find, names


class Good(gymnasium.Env[Any, Any]):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 1.0, False, False, {}

    def render(self) -> Any:
        return np.full((4, 5, 3), 9, np.uint8)


class Talks(Good):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Dict({"words": gymnasium.spaces.Text(5)})


class Breaks(Good):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise KeyError("lost\nthe map")


class Quits(Good):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        sys.exit("no licence")


class OldReset(Good):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32)


class StartsWithNan(Good):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.full(3, np.nan, np.float32), {}


def needs_arguments(size: int) -> Good:
    return Good()


def test_a_class_and_a_callable() -> None:
    assert find(Good).spec().obs.shape == (3,) and find(Good).name == "Good"
    made = find(lambda: Good())
    assert made.backend == "gymnasium" and not made.native and made.name == "lambda"
    batch = made.batch(2, 0, 0)
    assert batch.reset().shape == (2, 3)
    batch.close()


def test_pictures() -> None:
    plain, drawn = find(Good).single(), find(Good).single(render=True)
    drawn.reset(0)
    assert not plain.can_render and drawn.can_render and drawn.render().shape == (4, 5, 3)
    assert not find(lambda: Good()).single(render=True).can_render
    cart = find("CartPole-v1", "gymnasium").single(render=True)
    cart.reset(0)
    assert cart.can_render and cart.render().shape == (400, 600, 3)
    cart.close()


def test_an_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far_away.py").write_text(
        "import gymnasium\n"
        "class Box:\n    @staticmethod\n    def make():\n        return gymnasium.make('CartPole-v1')\n"
        "gymnasium.register('Far-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    found = find("far_away:Box.make")
    assert found.name == "far_away:Box.make" and found.spec().obs.shape == (4,)
    again = cloudpickle.loads(cloudpickle.dumps(found))
    assert again == found and again.spec() == found.spec()
    registered = find("far_away:Far-v0")
    assert registered.backend == "gymnasium" and registered.spec().obs.shape == (4,)
    batch = registered.batch(1, 0, 0)
    batch.reset()
    with pytest.raises(BadInput, match=r"'far_away:Nope' cannot be made: AttributeError: .*Nope"):
        find("far_away:Nope")
    del gymnasium.registry["Far-v0"]


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint, EntryPoints

    points = EntryPoints([EntryPoint("cart", "gymnasium.envs.classic_control:CartPoleEnv", "shoal.envs")])
    monkeypatch.setattr(source, "entry_points", lambda **wanted: points.select(**wanted))
    assert find("cart").spec().obs.shape == (4,) and find("cart").name == "cart"
    assert ("cart", "entry point") in names("cart")


@pytest.mark.parametrize(
    ("target", "backend", "message"),
    [
        ("CartPoll-v1", "gymnasium", r"'CartPoll-v1' is not known to gymnasium\. Did you mean 'CartPole-v1'"),
        ("no_such_module:Env", "auto", "'no_such_module:Env' cannot be made: ModuleNotFoundError: .*no_such_module"),
        (Talks, "auto", r"'Talks': observation space Text\(.*\) is not supported"),
        (Breaks, "auto", r"'Breaks' cannot be made: KeyError: 'lost\\nthe map'"),
        (Quits, "auto", "'Quits' cannot be made: SystemExit: no licence"),
        (OldReset, "auto", "'OldReset' cannot be made: ValueError: reset returned ndarray"),
        (StartsWithNan, "auto", "'StartsWithNan' cannot be made: ValueError: the first observation is not finite"),
        (needs_arguments, "auto", "'needs_arguments' cannot be made: TypeError: .*size"),
        (dict, "auto", "'dict' cannot be made: TypeError: made dict, which is not a gymnasium.Env"),
        (3, "auto", "environment is 3; it must be an id"),
        ("CartPole-v1", "envpol", "backend is 'envpol'; it must be one of .* Did you mean 'envpool'"),
        ("Acrobot-v1", "jax", "'Acrobot-v1' is not written in JAX; those that are: CartPole-v1, Pendulum-v1"),
        (Good, "envpool", "'Good' is a Python environment: its backend is 'gymnasium', not 'envpool'"),
    ],
)
def test_one_clear_line(target: Any, backend: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        find(target, backend)
    assert "\n" not in str(caught.value)


def test_unknown_ids_suggest_near_ones() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(BadInput, match=r"'LunarLandr-v3' is not known\. Did you mean 'LunarLander-v3'"):
        find("LunarLandr-v3")


def test_auto_prefers_envpool_where_gymnasium_shows_the_same(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("envpool")
    lander = find("LunarLander-v3")
    assert (lander.backend, lander.judge, lander.native) == ("envpool", "gymnasium", True)
    assert find("Blackjack-v1").backend == "gymnasium"  # EnvPool shows three numbers, Gymnasium a Tuple
    assert not caplog.records
    walk = find("WalkerWalk-v1")  # the DeepMind suite is EnvPool's alone
    assert (walk.backend, walk.judge) == ("envpool", "envpool") and "evaluation will use EnvPool" in caplog.text
    env = walk.single()
    first = env.reset(5)
    env.step(np.zeros(walk.spec().action.shape, np.float32))
    assert np.array_equal(env.reset(5), first) and not np.array_equal(env.reset(6), first)
    env.close()


def test_without_envpool_it_says_once_what_that_costs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(envpool, "installed", lambda: False)
    source._say_what_is_missing.cache_clear()
    assert [find("CartPole-v1").backend for _ in range(3)] == ["gymnasium"] * 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "three times slower" in record.message
    with pytest.raises(BadInput, match="needs EnvPool, which is not installed"):
        find("CartPole-v1", "envpool")


def test_gymnasiums_time_limit_holds_on_envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("envpool")
    monkeypatch.setattr(gymnasium.registry["Pendulum-v1"], "max_episode_steps", 5)
    batch = find("Pendulum-v1", "envpool").batch(1, 0, 0)
    batch.reset()
    ends = [bool(batch.step(np.zeros((1, 1), np.float32)).truncated[0]) for _ in range(5)]
    batch.close()
    assert ends == [False] * 4 + [True]


def test_jax_environments_are_known_by_id() -> None:
    assert find("CartPole-v1", "jax").backend == "jax"
    assert find("Pendulum-v1", "gymnasium").jax_env() is not None and find(Good).jax_env() is None
    assert find(find("CartPole-v1", "gymnasium"), "jax").backend == "jax"


def test_names() -> None:
    every = dict(names())
    assert "jax" in every["CartPole-v1"] and "gymnasium" in every["CartPole-v1"]
    assert set(dict(names("cartpole"))) == {name for name in every if "cartpole" in name.lower()}
    assert all(name.startswith("CartPole") for name, _ in names("cartpole-v*"))
    assert names("nothing-like-this") == []


def test_seeds_are_unique_and_fit() -> None:
    seeds = {seed_of(0, actor, env) for actor in range(20) for env in range(50)}
    assert len(seeds) == 1000 and max(seeds) < 2**31 and min(seeds) >= 0
    assert seed_of(0, 1, 2) == seed_of(0, 1, 2) != seed_of(0, 2, 1)


def test_envpool_is_imported_only_when_asked_for() -> None:
    code = "from shoal.envs.source import find; find('CartPole-v1', 'gymnasium'); print('envpool' in sys.modules)"
    paths = f"import sys; sys.path[:] = {sys.path!r}; "
    done = subprocess.run([sys.executable, "-c", paths + code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Grid(gymnasium.Env[np.ndarray, int]):
    """A Gymnasium environment with a `max_steps`, as many gridworlds have."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.max_steps = 10

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, True, {}


@pytest.mark.parametrize("target", [Grid, lambda: Grid()])
def test_an_environment_with_max_steps_is_not_taken_for_one_in_jax(target: Any) -> None:
    found = find(target)
    assert found.backend == "gymnasium" and found.batch(2, 0, 0).reset().shape == (2, 2)
