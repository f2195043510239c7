"""Spaces: the documented order, and there and back again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.core.errors import BadInput
from shoal.core.spec import Binary, Categorical, Continuous
from shoal.envs.rollouts import same
from shoal.envs.spaces import Actions, Observations

SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (5,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "double": spaces.Box(-3, 4, (2,), np.float64),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "half bounded": spaces.Box(0, np.inf, (2,), np.float32),
    "whole numbers": spaces.Box(-3, 9, (2, 2), np.int32),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "scalar box": spaces.Box(-2, 2, (), np.float32),
    "discrete": spaces.Discrete(4),
    "discrete from 3": spaces.Discrete(4, start=3),
    "multi": spaces.MultiDiscrete([2, 3, 4]),
    "multi from": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "multi matrix": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "bits": spaces.MultiBinary(3),
    "bit matrix": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 2, (2,), np.float32))),
    "tuple of discrete": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2, start=1))),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (2,), np.float32)}),
    "nested": spaces.Dict(
        {"x": spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(3))), "c": spaces.Dict({"d": spaces.Discrete(2)})}
    ),
}


def close(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    return np.asarray(a).shape == np.asarray(b).shape and np.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_observations_there_and_back(name: str) -> None:
    space = SPACES[name]
    convert = Observations(space)
    space.seed(0)
    for _ in range(20):
        value = space.sample()
        flat = convert.single(value)
        assert flat.shape == convert.spec.shape and flat.dtype == np.float32
        back = convert.undo(flat)
        assert close(value, back) and space.contains(back)


@pytest.mark.parametrize("name", SPACES)
def test_actions_there_and_back(name: str) -> None:
    space = SPACES[name]
    convert = Actions(space)
    space.seed(0)
    values = [space.sample() for _ in range(20)]
    flat = np.stack([convert.encode(value) for value in values])
    assert flat.shape == (20, *convert.spec.shape) and flat.dtype == convert.spec.dtype
    decoded = convert.decode(flat)
    for i, value in enumerate(values):
        assert close(value, convert.item(decoded, i)) and space.contains(convert.item(decoded, i))
        assert same(convert.single(flat[i]), convert.item(decoded, i))


def test_observations_in_order() -> None:
    space = spaces.Dict(
        {"b": spaces.Discrete(3, start=1), "a": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-9, 9, (1, 2))))}
    )
    flat = Observations(space).single({"b": 2, "a": (np.array([1, 0]), np.array([[7.0, 8.0]]))})
    assert flat.tolist() == [1, 0, 7, 8, 0, 1, 0]
    kept = spaces.Dict(OrderedDict([("b", spaces.Discrete(2)), ("a", spaces.Box(0, 9, (1,)))]))
    assert Observations(kept).single({"a": np.array([5.0]), "b": 0}).tolist() == (
        [1, 0, 5] if list(kept.spaces) == ["b", "a"] else [5, 1, 0]
    )
    multi = Observations(spaces.MultiDiscrete([2, 3])).single(np.array([1, 2]))
    assert multi.tolist() == [0, 1, 0, 0, 1]


def test_batches_equal_singles() -> None:
    space = SPACES["nested"]
    values = [space.sample() for _ in range(4)]
    stacked = {
        "x": (np.stack([v["x"][0] for v in values]), np.array([v["x"][1] for v in values])),
        "c": {"d": np.array([v["c"]["d"] for v in values])},
    }
    convert = Observations(space)
    assert np.array_equal(convert.batch(stacked, 4), np.stack([convert.single(v) for v in values]))


def test_pictures() -> None:
    picture = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)
    last = Observations(spaces.Box(0, 255, (6, 5, 3), np.uint8))
    assert last.spec.is_image and np.array_equal(last.single(picture), picture)
    first = Observations(spaces.Box(0, 255, (3, 6, 5), np.uint8))
    assert first.spec.shape == (6, 5, 3) and np.array_equal(first.single(picture.transpose(2, 0, 1)), picture)
    assert np.array_equal(first.undo(picture), picture.transpose(2, 0, 1))
    grey = Observations(spaces.Box(0, 255, (6, 5), np.uint8))
    assert grey.spec.shape == (6, 5, 1) and np.array_equal(grey.single(picture[..., 0]), picture[..., :1])
    assert np.array_equal(grey.undo(picture[..., :1]), picture[..., 0])
    with pytest.raises(ValueError, match="float64"):
        last.single(picture.astype(np.float64))


def test_action_parts() -> None:
    space = spaces.Dict({"c": spaces.Box(-1, 3, (2,)), "a": spaces.Discrete(3), "b": spaces.MultiBinary(2)})
    spec = Actions(space).spec
    assert spec.parts == (Categorical((3,)), Binary(2), Continuous((-1.0, -1.0), (3.0, 3.0)))
    assert spec.width == 5 and spec.dtype == np.float32 and not spec.scalar
    assert Actions(spaces.Discrete(3)).spec.scalar and Actions(spaces.Discrete(3)).spec.shape == ()


def test_continuous_actions_are_clipped_and_scaled() -> None:
    convert = Actions(spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([2, 10, np.inf], np.float32)))
    decoded = convert.decode(np.array([[-1, -1, -50], [0, 0, 0.5], [7, 1, 50]], np.float32))
    assert decoded.tolist() == [[-2, 0, -50], [0, 5, 0.5], [2, 10, 50]]
    whole = Actions(spaces.Box(0, 4, (1,), np.int64)).decode(np.array([[-9.0], [0.3], [9.0]], np.float32))
    assert whole.tolist() == [[0], [3], [4]] and whole.dtype == np.int64
    half = Actions(spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 1], np.float32)))
    assert half.decode(np.array([[-5, 7], [5, -7]], np.float32)).tolist() == [[0, 1], [5, -7]]
    extreme = spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,), np.float32)
    assert Actions(extreme).decode(np.array([[0.25]], np.float32)).tolist() == [[0.25]]


def test_decoded_actions_do_not_share_memory() -> None:
    given = np.zeros((1, 2), np.float32)
    Actions(SPACES["unbounded"]).decode(np.zeros((1, 3), np.float32))
    decoded = Actions(spaces.Box(-np.inf, np.inf, (2,), np.float32)).decode(given)
    decoded[:] = 5
    assert not given.any()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2)]),
    ],
)
def test_refuses_what_has_no_width(space: Any) -> None:
    name = type(space).__name__
    with pytest.raises(BadInput, match=f"observation space .*{name} has no fixed width"):
        Observations(spaces.Dict({"a": space}))
    with pytest.raises(BadInput, match=f"action space .*{name} has no fixed width"):
        Actions(spaces.Tuple((space,)))


def test_observations_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        Observations(spaces.Discrete(3)).single(3)
    with pytest.raises(ValueError):
        Observations(spaces.Box(-1, 1, (2,))).single(np.zeros(3))
    with pytest.raises(ValueError, match="shape"):
        Observations(spaces.Box(-1, 1, (2,))).batch(np.zeros((4, 3), np.float32), 4)


def test_too_large_for_float32_is_infinite() -> None:
    assert np.isinf(Observations(spaces.Box(-np.inf, np.inf, (1,), np.float64)).single(np.array([1e300]))).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_unbounded_whole_numbers_are_unbounded(dtype: Any) -> None:
    actions = Actions(spaces.Box(-np.inf, np.inf, (1,), dtype))
    [part] = actions.spec.parts
    assert isinstance(part, Continuous) and part.low == (-np.inf,) and part.high == (np.inf,)
    assert actions.decode(np.array([[2.6], [-7.0]], np.float32)).tolist() == [[3], [-7]]
    half = Actions(spaces.Box(0, np.inf, (1,), dtype))
    assert half.decode(np.array([[2.6], [-7.0]], np.float32)).tolist() == [[3], [0]]


def test_the_largest_whole_number_keeps_its_sign() -> None:
    most = np.iinfo(np.int64)
    actions = Actions(spaces.Box(most.min, most.max, (1,), np.int64))
    low, high = actions.decode(np.array([[-1e30], [1e30]], np.float32))[:, 0]
    assert low < -(2**62) and high > 2**62
