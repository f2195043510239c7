"""Functions compiled ahead: equal bits whether the program was traced or read, and a trace wherever a file does not fit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from shoal.algos.ppo import PPO, PPOConfig
from shoal.core.algorithm import Task
from shoal.core.spec import ActionSpec, Categorical, EnvSpec, ObsSpec
from shoal.learning.compiled_update import apply
from shoal.nets.actor_critic import ActorCritic
from shoal.ops.statistics import normalised_rewards
from shoal.process import compile_ahead as module
from shoal.process.compile_ahead import compile_ahead


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_compiled", {})
    return tmp_path / "programs"


@pytest.fixture(scope="module")
def algorithm() -> Any:
    spec = EnvSpec("tiny", ObsSpec((3,)), ActionSpec((Categorical((2,)),), scalar=True))
    net = ActorCritic(ActorCritic.Config(hidden=(4,)), spec)
    return PPO(PPOConfig(unroll=4), Task(spec=spec, envs=2), net)


@pytest.fixture(scope="module")
def args(algorithm: Any) -> Any:
    state = jax.jit(lambda: algorithm.init(jax.random.key(0)))()
    return state, jax.tree.map(lambda p: np.ones_like(p), state.params)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def never(*words: Any) -> Any:
    raise AssertionError("traced")


def test_what_was_just_traced_is_lowered_as_what_is_read(
    algorithm: Any, args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, lower = [], module._lowered_program

    def note(program: Any, leaves: Any) -> Any:
        lowered = lower(program, leaves)
        texts.append(lowered.as_text())
        return lowered

    monkeypatch.setattr(module, "_lowered_program", note)
    compile_ahead(apply, algorithm, *args)
    module.forget()
    compile_ahead(apply, algorithm, *args)
    [first, second] = texts  # names included: JAX finds compiled code by them
    assert first == second and "jit_apply" in first


def test_a_program_is_traced_once_and_read_from_then_on(
    algorithm: Any, args: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = jax.jit(lambda *args: apply(algorithm, *args))(*args)
    first = compile_ahead(apply, algorithm, *args)(*args)
    [path] = folder.iterdir()
    assert b"\n" in path.read_bytes()
    module.forget()  # as another process
    monkeypatch.setattr(module, "_exported", never)
    shapes = jax.eval_shape(lambda: args)  # shapes are enough
    again = compile_ahead(apply, algorithm, *shapes)(*args)
    assert jax.tree.structure(first) == jax.tree.structure(again) == jax.tree.structure(plain)
    assert bits(first) == bits(again) == bits(plain)


def edited(sign: bool, **fields: Any) -> Any:
    """A file with another header; `sign`: with the sum that belongs to it, as if another program had written it."""

    def spoil(whole: bytes) -> bytes:
        head, _, data = whole.partition(b"\n")
        header = msgspec.structs.replace(msgspec.json.decode(head, type=module.Header), **fields)
        if sign:
            header = msgspec.structs.replace(header, sha256=module._digest(header, data))
        return msgspec.json.encode(header) + b"\n" + data

    return spoil


SPOILT = [
    lambda data: data[:-7],
    lambda data: b"{}\n",
    lambda data: b"",
    edited(False, outputs=[([3], "float32")]),
    edited(True, inputs=[([3], "float32")]),
    edited(True, outputs=[]),
    edited(True, result=[0, 0]),
    edited(True, result={"tuple": [0]}),
    edited(True, inputs=[([3], "no such type")]),
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_file_that_does_not_hold_what_it_says_is_made_anew(spoil: Any, folder: Path) -> None:
    small = (normalised_rewards, 2.0, np.ones(2, np.float32))  # compiles in no time
    first = compile_ahead(*small)(small[-1])
    [path] = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    module.forget()  # as another process
    assert bits(compile_ahead(*small)(small[-1])) == bits(first)
    assert module._read(path) is not None


def test_another_setting_shape_source_or_version_is_another_key(
    algorithm: Any, args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(function: Any = apply, owner: Any = algorithm, args: Any = args) -> str:
        leaves, tree = jax.tree.flatten(args)
        return module._key(function, owner, leaves, str(tree))

    keys = {
        key(),
        key(owner=replace(algorithm, config=PPOConfig(unroll=4, clip=0.3))),
        key(function=module.compile_ahead),
    }
    keys |= {key(args=(*args, np.float32(0)))}
    with jax.default_matmul_precision("float32"):
        keys |= {key()}
    monkeypatch.setattr(module, "_world", lambda: "another source, or another JAX")
    assert len(keys | {key()}) == 6


def test_what_a_key_cannot_stand_for_is_traced_and_not_kept(algorithm: Any, args: Any, folder: Path) -> None:
    def doubled(owner: Any, state: Any, grads: Any) -> Any:  # whose source no key knows
        return apply(owner, state, jax.tree.map(lambda g: 2 * g, grads))

    after = compile_ahead(doubled, algorithm, *args)(*args)
    assert bits(after) == bits(jax.jit(lambda *args: doubled(algorithm, *args))(*args))
    assert not folder.exists()


def test_what_was_not_used_for_the_longest_time_goes_first(
    algorithm: Any, args: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    for age in range(4):
        path = folder / f"{age}.shlo"
        path.write_bytes(bytes(1 << 20))
        os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(module, "LIMITS", {"programs": 5 << 19})
    compile_ahead(apply, algorithm, *args)
    kept = {path.name for path in folder.iterdir()}
    assert {"0.shlo", "1.shlo"} < kept and len(kept) == 3, "and the one that was just made"


def test_it_can_be_switched_off(algorithm: Any, args: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", "off")
    monkeypatch.chdir(folder.parent)
    after = compile_ahead(apply, algorithm, *args)(*args)
    assert bits(after) == bits(jax.jit(lambda *args: apply(algorithm, *args))(*args))
    assert not list(folder.parent.iterdir())
