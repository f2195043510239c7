"""Records, trajectories and weights: layouts that all rooms agree on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.record import ALIGN, Field, Record
from shoal.core.spec import ActionSpec, Binary, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import as_trajectory, trajectory_record
from shoal.core.weights import flat, from_words, layout_of, leaf_names, params_hash, to_vector, to_words, words_of

RECORD = Record((Field("a", (3,), "float32"), Field("b", (), "int64"), Field("c", (5, 2), "uint8")))
TREE = {"policy": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}, "x": np.float32(7)}


def test_views_share_memory_and_do_not_overlap() -> None:
    buffer = bytearray(2 * RECORD.nbytes)
    first, second = RECORD.views(buffer, 0), RECORD.views(buffer, RECORD.nbytes)
    for value, view in enumerate([*first.values(), *second.values()]):
        view[...] = value
    assert [int(view.ravel()[0]) for view in (*first.values(), *second.values())] == list(range(6))
    assert (RECORD.views(buffer, 0)["c"] == 2).all()


def test_empty_is_zero_and_aligned() -> None:
    empty = RECORD.empty()
    assert all(not a.any() and a.ctypes.data % ALIGN == 0 for a in empty.values())
    assert {n: (a.shape, a.dtype.name) for n, a in empty.items()} == {f.name: (f.shape, f.dtype) for f in RECORD.fields}
    assert Record.like(empty) == RECORD


def test_trajectory_record_holds_a_whole_unroll() -> None:
    spec = EnvSpec("x", ObsSpec((4, 4, 1), "uint8"), ActionSpec((Categorical((3,)),), scalar=True))
    carry = {"h": np.zeros((2, 6), np.float32)}
    slot = trajectory_record(spec, 5, 2, {"log_prob": np.zeros(2, np.float32)}, carry).empty()
    tr = as_trajectory(slot)
    assert tr.obs.shape == (6, 2, 4, 4, 1) and tr.obs.dtype == np.uint8
    assert tr.action.shape == tr.reward.shape == tr.version.shape == (5, 2) and tr.action.dtype == np.int32
    assert tr.first.shape == (6, 2) and tr.extras["log_prob"].shape == (5, 2) and tr.carry["h"].shape == (2, 6)
    slot["reward"][...] = 3
    assert (tr.reward == 3).all(), "nothing is copied"


@pytest.mark.parametrize(
    ("parts", "width", "dtype"),
    [
        ((Categorical((3, 2)),), 2, np.int32),
        ((Binary(4),), 4, np.int32),
        ((Continuous((-1.0,), (1.0,)),), 1, np.float32),
        ((Categorical((3,)), Continuous((-1.0, 0.0), (1.0, 2.0))), 3, np.float32),
    ],
)
def test_action_arrays(parts: tuple[Categorical | Binary | Continuous, ...], width: int, dtype: type) -> None:
    spec = ActionSpec(parts)
    assert spec.shape == (width,) and spec.dtype == dtype


def test_a_tree_becomes_a_vector_and_back() -> None:
    layout, vector = layout_of(TREE), to_vector(TREE)
    assert layout.names == ("policy/b", "policy/w", "x") == tuple(leaf_names(TREE)) and layout.size == 9
    back = layout.tree(vector)
    assert all(np.array_equal(back["policy"][n], TREE["policy"][n]) for n in ("w", "b")) and back["x"] == 7
    vector[-1] = 8
    assert back["x"] == 8, "leaves are views"


def test_fingerprints_tell_layouts_apart() -> None:
    same = {"x": np.float32(0), "policy": {"b": np.zeros(2, np.float32), "w": np.zeros((2, 3), np.float32)}}
    turned = {**same, "policy": {"b": np.zeros(2, np.float32), "w": np.zeros((3, 2), np.float32)}}
    assert layout_of(TREE).fingerprint == layout_of(same).fingerprint != layout_of(turned).fingerprint


def test_weights_are_float32() -> None:
    with pytest.raises(TypeError, match="'n' is int32; weights are float32"):
        layout_of({"n": jnp.zeros(3, jnp.int32)})


def test_one_bit_makes_another_hash() -> None:
    other = {**TREE, "x": np.nextafter(np.float32(7), np.float32(8))}
    assert params_hash(TREE) == params_hash({**TREE}) != params_hash(other)
    assert params_hash({"a": np.float32(0.0)}) != params_hash({"a": np.float32(-0.0)})


def test_a_compiled_function_makes_the_same_vector() -> None:
    assert np.asarray(jax.jit(flat)(TREE)).tobytes() == to_vector(TREE).tobytes()
    assert flat({}).shape == to_vector({}).shape == (0,)


def test_words_carry_leaves_of_any_type_bit_for_bit() -> None:
    mixed = {**TREE, "n": np.int32(-5), "flags": np.array([True, False, True]), "far": np.array([np.nan, 1e-310])}
    words = to_words(mixed)
    assert words.dtype == np.float32 and words.shape == (words_of(mixed),) == (9 + 1 + 1 + 4,)
    back = from_words(words.copy(), mixed)
    for name, leaf in zip(leaf_names(mixed), jax.tree.leaves(mixed), strict=True):
        found = dict(zip(leaf_names(back), jax.tree.leaves(back), strict=True))[name]
        assert (found.dtype, found.shape, found.tobytes()) == (leaf.dtype, leaf.shape, leaf.tobytes())
