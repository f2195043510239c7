"""What DDPG, TD3 and SAC share: noise and warm-up, rows of n steps, groups, refusals, and a bandit that all of them solve."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continuous_algos import ENTRIES, NAMES, WIDTH, B, T, begin, bits, drawn, make, stepping, trajectory

import shoal
from shoal.acting.compiled_act import act as act_once
from shoal.algos.continuous import ContinuousConfig
from shoal.core.errors import BadInput
from shoal.core.keys import key_data
from shoal.core.spec import ActionSpec, Categorical, Continuous, EnvSpec, ObsSpec
from shoal.core.weights import layout_of
from shoal.learning.shared_layout import SharedLayout
from shoal.nets.continuous import layer_norm

OBS = np.random.default_rng(0).normal(size=(B, WIDTH)).astype(np.float32)
NONE, ALL, ONES = np.zeros(B, bool), np.ones(B, bool), np.ones(B, np.float32)


def act(algorithm: Any, state: Any, carry: Any, key: int = 0, first: Any = NONE, explore: float = 1.0) -> Any:
    actor = algorithm.actor_state(state)
    return act_once(algorithm, actor, OBS, carry, first, key_data(key), np.int32(0), explore * ONES)


def warm(algorithm: Any) -> Any:
    return begin(algorithm)._replace(step=jnp.int32(1))


@pytest.mark.parametrize("name", NAMES)
class TestActing:
    def test_warm_up_lasts_until_the_first_gradient(self, name: str) -> None:
        algorithm = make(name)
        before, after = begin(algorithm), warm(algorithm)
        carry = algorithm.initial_carry(B)
        drawn_ = np.concatenate([np.asarray(act(algorithm, before, carry, key)[0]) for key in range(60)])
        assert float(algorithm.actor_state(before).explore["warmup"]) == 1.0
        assert np.abs(np.quantile(drawn_, [0.25, 0.5, 0.75]) - [-0.5, 0.0, 0.5]).max() < 0.1, "uniform"
        assert float(algorithm.actor_state(after).explore["warmup"]) == 0.0

    def test_ar1_warm_up_keeps_its_direction_within_an_episode(self, name: str) -> None:
        algorithm = make(name, warmup_noise="ar1")
        carry = {**algorithm.initial_carry(B), "warmup": np.full((B, ENTRIES), 0.9, np.float32)}
        going_on = np.asarray(act(algorithm, begin(algorithm), carry)[0])
        assert going_on.min() > 0.1
        anew = np.concatenate(
            [np.asarray(act(algorithm, begin(algorithm), carry, key, first=ALL)[0]) for key in range(20)]
        )
        assert abs(np.mean(anew > 0) - 0.5) < 0.2

    def test_unbounded_entries_are_scaled(self, name: str) -> None:
        spec = EnvSpec("free", ObsSpec((WIDTH,)), ActionSpec((Continuous((-1.0, -math.inf), (1.0, math.inf)),)))
        with pytest.raises(BadInput, match=r"free: actions have no finite bounds \(entry 1\); --algo.action-scale S"):
            make(name, spec)
        algorithm = make(name, spec, action_scale=5.0)
        found = np.concatenate(
            [np.asarray(act(algorithm, begin(algorithm), algorithm.initial_carry(B), k)[0]) for k in range(50)]
        )
        assert 0.9 < np.abs(found[:, 0]).max() <= 1 and 4.5 < np.abs(found[:, 1]).max() <= 5
        plain, state = make(name), begin(make(name))
        batch = drawn()
        scaled = batch._replace(rows=batch.rows._replace(action=batch.rows.action * np.float32([1, 5])))
        grads = [stepping(plain)(state, batch, 0)[0], stepping(algorithm)(state, scaled, 0)[0]]
        for one, other in zip(*map(jax.tree.leaves, grads), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)  # critics see actions in [-1, 1]

    def test_discrete_is_refused_by_name(self, name: str) -> None:
        with pytest.raises(BadInput, match=r"cart: its actions are Discrete; .*: use dqn or ppo"):
            make(name, EnvSpec("cart", ObsSpec((WIDTH,)), ActionSpec((Categorical((2,)),), scalar=True)))


def test_ornstein_uhlenbeck_lives_in_the_carry_and_follows_episodes() -> None:
    algorithm = make("ddpg", noise_scale=0.01)
    state, carry = warm(algorithm), {"noise": np.full((B, ENTRIES), 0.4, np.float32)}
    greedy = np.asarray(act(algorithm, state, carry, explore=0.0)[0])
    action, _, after = act(algorithm, state, carry)
    np.testing.assert_allclose(after["noise"], 0.85 * 0.4, atol=0.06)
    np.testing.assert_allclose(action, np.clip(greedy + after["noise"], -1, 1), atol=1e-6)
    _, _, fresh = act(algorithm, state, carry, first=ALL)
    assert np.abs(fresh["noise"]).max() < 0.06
    assert make("ddpg", noise="gaussian").initial_carry(B) == {}


@pytest.mark.parametrize("name", NAMES)
class TestLearning:
    def test_targets_are_copies_and_follow_slowly(self, name: str) -> None:
        algorithm = make(name, tau=0.25, **({"policy_delay": 1} if name == "td3" else {}))
        fresh = jax.jit(algorithm.init)(jax.random.key(0))
        owned = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(fresh.params)}
        assert not owned & {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(fresh.extra)}
        state = begin(algorithm)
        after = algorithm.settle(state, jax.tree.map(lambda p: p + 1, state.params))
        old, new = state.extra["target"], after.extra["target"]
        for part in old:
            for a, b, p in zip(*map(jax.tree.leaves, (old[part], new[part], after.params[part])), strict=True):
                np.testing.assert_allclose(b, 0.75 * a + 0.25 * p, rtol=1e-4, atol=1e-5)

    def test_gradients_for_steps_on_either_side_of_one(self, name: str) -> None:
        for ratio, expected in ((1.0, (1, 1)), (0.5, (1, 2)), (4.0, (4, 1)), (1.5, (3, 2)), (0.1, (1, 10))):
            replay = make(name, updates_per_step=ratio).experience
            assert (replay.repeats, replay.every) == expected

    def test_groups_on_slices_of_the_vector_are_groups_on_trees(self, name: str) -> None:
        """What servers of slices do to a gradient is what one learner does: rates, what stays, moments."""
        algorithm = make(name, policy_rate=0.3)
        state, shards = begin(algorithm), 3
        layout = SharedLayout(algorithm, True)
        table = layout.to_shards(layout.pack(state), shards)
        for seed in range(3):
            grads, feedback, state = stepping(algorithm)(state, drawn(seed), seed)
            vector = np.zeros(layout.slice_size(shards) * shards, np.float32)
            vector[: layout.size] = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)])
            moved = np.ones(len(algorithm.groups), bool) if feedback.moved is None else np.asarray(feedback.moved)
            pieces = zip(table, vector.reshape(shards, -1), strict=True)
            table = np.stack(
                [
                    layout.apply_slice(layout.group_slice(i, shards), row, piece, np.float32(0), moved)
                    for i, (row, piece) in enumerate(pieces)
                ]
            )
        np.testing.assert_allclose(layout.from_shards(table), layout.pack(state), rtol=1e-4, atol=1e-6)

    def test_layer_norm_is_an_option(self, name: str) -> None:
        algorithm = make(name, layer_norm=True)
        state = begin(algorithm)
        assert "norm0" in state.params["policy"]["trunk"] and "norm0" in state.params["critic"]["q0"]["trunk"]
        x = np.random.default_rng(0).normal(3, 5, (4, 6)).astype(np.float32)
        found = np.asarray(layer_norm({"gain": np.float32([2] * 6), "bias": np.float32([1] * 6)}, x))
        np.testing.assert_allclose((found.mean(1), found.std(1)), (np.ones(4), np.full(4, 2)), rtol=1e-4)
        assert layout_of(state.params).size > layout_of(begin(make(name)).params).size


FLIPS: dict[str, Any] = {
    "learning_rate": 0.05,
    "final_rate": 0.5,
    "gamma": 0.5,
    "unroll": 4,
    "batch_size": 5,
    "capacity": 500,
    "warmup": 7,
    "n_step": 2,
    "replay": "prioritized",
    "alpha": 0.1,
    "beta": 0.9,
    "replacement": False,
    "sampler": "cpprb",
    "save_limit": 0.0,
    "max_grad_norm": 1e-3,
    "normalise_obs": True,
    "normalise_reward": True,
    "reward_clip": "sign",
    "reward_scale": 10.0,
    "policy_rate": 0.3,
    "updates_per_step": 0.5,
    "tau": 0.9,
    "action_scale": 3.0,
    "warmup_noise": "ar1",
    "warmup_phi": 0.5,
    "noise": None,
    "noise_scale": 0.7,
    "final_noise": 0.1,
    "noise_theta": 0.9,
    "policy_delay": 1,
    "smoothing": 0.01,
    "smoothing_limit": 0.01,
    "temperature": 0.2,
    "temperature_rate": 0.1,
    "target_entropy": -9.0,
}
BESIDE: dict[str, dict[str, Any]] = {"warmup_phi": {"warmup_noise": "ar1"}, "noise_theta": {"noise": "ou"}}
FREE = EnvSpec("free", ObsSpec((WIDTH,)), ActionSpec((Continuous((-math.inf,) * 2, (math.inf,) * 2),)))
SHARED = {field.name for field in dataclasses.fields(ContinuousConfig)}
OF_SEQUENCES = {"sequence", "burn_in", "priority_max"}  # refused or unread without a memory: test_sequences.py
KNOBS = [
    (n, f.name)
    for n in NAMES
    for f in dataclasses.fields(make(n).config)
    if f.name not in (OF_SEQUENCES if n == "td3" else SHARED)
]


@pytest.mark.parametrize(("name", "knob"), KNOBS)
def test_every_knob_is_read(name: str, knob: str) -> None:
    """Another value keeps, draws, learns or acts in another way. `FLIPS` must know every field."""
    beside, spec = BESIDE.get(knob, {}), FREE if knob == "action_scale" else make(name).task.spec
    if knob == "action_scale":
        beside = {"action_scale": 1.0}
    value = FLIPS[knob] or ("gaussian" if name == "ddpg" else "ou") if knob == "noise" else FLIPS[knob]
    plain, other = make(name, spec, **beside), make(name, spec, **{**beside, knob: value})
    assert getattr(plain.config, knob) != value

    def quick(algorithm: Any) -> list[Any]:
        fresh = algorithm.init(jax.random.key(0))._replace(progress=jnp.float32(0.5))
        found = [algorithm.experience, float(algorithm.rate(fresh)), algorithm.groups, bits(fresh)]
        return [
            *found,
            bits(algorithm.actor_state(fresh).explore),
            {n: a.shape for n, a in algorithm.initial_carry(2).items()},
        ]

    def outcome(algorithm: Any) -> list[Any]:
        state = begin(algorithm)
        carry = {n: np.full(a.shape, 0.5, np.float32) for n, a in algorithm.initial_carry(B).items()}
        found = [bits(act(algorithm, s, carry)[::2]) for s in (state, warm(algorithm))]
        found += [bits(algorithm.prepare(state, None, trajectory(), jax.random.key(0))[1])]
        for seed in range(2):
            state = stepping(algorithm)(state, drawn(seed), seed)[2]
        return [*found, bits((state.params, state.extra))]

    assert quick(plain) != quick(other) or outcome(plain) != outcome(other)


class Aim(gymnasium.Env[np.ndarray, np.ndarray]):
    """One step; the reward is minus the squared distance of the action from a point that the observation shows."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
        self._at = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._at, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._at, -float(np.square(action - self._at).sum()), True, False, {}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "td3" else pytest.mark.slow) for n in NAMES])
def test_a_bandit_with_continuous_actions_is_solved(name: str, tmp_path: Path) -> None:
    """The best action is the observation. Standing still at 0 earns -2/3; the optimum is 0."""
    own = {"temperature": 0.01, "temperature_rate": 0.0} if name == "sac" else {"noise": "gaussian", "noise_scale": 0.2}
    run = shoal.train(
        Aim,
        algo={
            "name": name,
            "learning_rate": 3e-3,
            "final_rate": 0.05,
            "unroll": T,
            "batch_size": 64,
            "warmup": 200,
            **own,
        },
        net={"hidden": (32, 32), "activation": "tanh"},
        runtime="inline",
        topology="sequential",
        actors=1,
        envs=8,
        steps=6_000,
        eval_episodes=50,
        sinks=("jsonl",),
        out=tmp_path / "run",
        quiet=True,
        report=False,
    )
    assert run.summary["eval_mean"] > -0.01
