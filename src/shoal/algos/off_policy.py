"""Shared code of DQN, DDPG, TD3 and SAC: replay, n-step rows, normalisation, and a target that follows the weights.

Recurrent nets learn from sequences of steps: see `algos.sequences`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import jax
import jax.numpy as jnp

from shoal.algos import sequences
from shoal.core.algorithm import (
    NO_SETTINGS,
    ActorState,
    Drawn,
    Kept,
    LearnerState,
    Minibatches,
    Params,
    Replay,
    RewardScale,
    Task,
)
from shoal.core.config import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, replace
from shoal.core.errors import BadInput
from shoal.core.trajectory import EARNED, Array, Sequences, Trajectory, Transitions
from shoal.ops import q_learning, returns, schedules, statistics


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings of every algorithm with a replay."""

    learning_rate: PositiveFloat = 5e-4
    """learning rate at the start"""
    final_rate: Fraction = 1.0
    """share of the learning rate that remains at the end of the budget; 1 keeps it constant"""
    gamma: Fraction = 0.99
    """discount per step"""
    unroll: Positive = 8
    """steps of each environment between two additions to the replay"""
    batch_size: Positive = 128
    """rows per gradient; for recurrent nets this, `capacity` and `warmup` count steps, which are divided into sequences"""
    capacity: Positive = 100_000
    """capacity of the replay in rows, over all environments"""
    warmup: NonNegative = 1_000
    """rows in the replay before the first gradient"""
    sequence: NonNegative = 0
    """recurrent nets: steps of a sequence, which is one row of the replay, at most `unroll`; 0 is the whole unroll"""
    burn_in: NonNegative | None = None
    """recurrent nets: first steps of a sequence that only warm the memory up, unless an episode starts; by default a quarter"""
    priority_max: Fraction = 0.9
    """recurrent nets, prioritized: share of the largest error in a sequence's priority; the rest is the mean error's"""
    n_step: Positive = 1
    """rewards before the bootstrap, at most `unroll`"""
    replay: Literal["uniform", "prioritized"] = "uniform"
    """how rows are drawn: with equal probability, or in proportion to their last error"""
    alpha: Fraction = 0.6
    """prioritized: exponent of the error; 0 draws uniformly, 1 in proportion to the error"""
    beta: Fraction = 0.4
    """prioritized: importance-sampling correction at the start; it rises to 1 at the end of the budget"""
    replacement: bool = True
    """draw with replacement: a row may occur twice in one minibatch"""
    sampler: Literal["seeded", "cpprb"] = "seeded"
    """implementation of the priorities: seeded follows the run's seed; cpprb draws random numbers that cannot be reproduced"""
    save_limit: NonNegativeFloat = 1.0
    """largest replay in GiB that checkpoints save; a larger one is not saved, and a resumed run fills it again"""
    max_grad_norm: PositiveFloat = 10.0
    """largest global norm of a gradient; larger gradients are scaled down"""
    normalise_obs: bool = False
    """standardise observations by running statistics, which are part of the weights that actors receive"""
    normalise_reward: bool = False
    """divide rewards by the running standard deviation of discounted returns, and clip them to 10"""
    reward_clip: Literal["off", "sign"] = "off"
    """sign: learn from the reward's sign (-1, 0 or 1), taken before scaling and normalisation; scores use the original reward"""
    reward_scale: PositiveFloat = 1.0
    """factor of the rewards, applied before normalisation"""


class ReplayNet(Protocol):
    @property
    def recurrent(self) -> bool:
        """Whether values and actions depend on a carry; then the net learns from sequences."""

    def initial_carry(self, envs: int) -> dict[str, Array]:
        """The recurrent state at the start of an episode, float32 arrays [B, ...]; {} for feed-forward."""


C = TypeVar("C", bound=OffPolicyConfig)
N = TypeVar("N", bound=ReplayNet)


@dataclass(frozen=True)
class OffPolicy(abc.ABC, Generic[C, N]):
    """Base of algorithms with a replay: from unrolls to minibatches. Concrete algorithms add the loss and how to act."""

    config: C
    task: Task
    net: N

    Config: ClassVar[type[Any]]
    about: ClassVar[str]
    net_name: ClassVar[str]
    usual_topology: ClassVar[str] = "sync"
    replays: ClassVar[bool] = True
    if_trained: ClassVar[Mapping[str, Any]] = NO_SETTINGS
    topologies: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        config = replace(self.config, {}, "algo.")
        self.check()
        self._check_sequences()
        if config.n_step > config.unroll:
            raise BadInput(
                f"--algo.n-step is {config.n_step}: windows end with the unroll, so at most --algo.unroll {config.unroll}"
            )
        if config.replay == "prioritized" and config.sampler == "cpprb" and not config.replacement:
            raise BadInput(
                "--algo.replacement is false: --algo.sampler cpprb only draws with replacement; seeded supports both"
            )
        for name in ("batch_size", "warmup"):
            if getattr(config, name) > config.capacity:
                flag = name.replace("_", "-")
                raise BadInput(
                    f"--algo.{flag} is {getattr(config, name)}: more than the replay holds (--algo.capacity {config.capacity})"
                )

    @abc.abstractmethod
    def check(self) -> None:
        """Refuse a net or spaces that this algorithm does not support."""

    def _check_sequences(self) -> None:
        config = self.config
        if not self.recurrent:
            for flag, value in (("sequence", config.sequence or None), ("burn-in", config.burn_in)):
                if value is not None:
                    raise BadInput(
                        f"--algo.{flag} is {value}: only recurrent nets learn from sequences (--net.cell lstm)"
                    )
            return
        if config.sequence > config.unroll:
            raise BadInput(
                f"--algo.sequence is {config.sequence}: sequences lie within an unroll, so at most --algo.unroll {config.unroll}"
            )
        if self.burn_in >= self.sequence:
            raise BadInput(
                f"--algo.burn-in is {self.burn_in}: nothing would be learnt from sequences of {self.sequence} steps; at most"
                f" {self.sequence - 1}"
            )
        if config.n_step > self.sequence:
            raise BadInput(
                f"--algo.n-step is {config.n_step}: windows end with the sequence, so at most --algo.sequence {self.sequence}"
            )

    @property
    def recurrent(self) -> bool:
        return self.net.recurrent

    @property
    def sequence(self) -> int:
        """Steps of a row."""
        return (self.config.sequence or self.config.unroll) if self.recurrent else 1

    @property
    def burn_in(self) -> int:
        return self.sequence // 4 if self.config.burn_in is None else self.config.burn_in

    @property
    def starts(self) -> tuple[int, ...]:
        """The rows of an unroll at which sequences begin."""
        return sequences.starts(self.config.unroll, self.sequence, self.burn_in)

    @property
    @abc.abstractmethod
    def gradients_per_steps(self) -> tuple[int, int]:
        """Ratio of gradients to environment steps: (gradients, steps)."""

    @property
    def experience(self) -> Replay:
        config, (repeats, every), steps = self.config, self.gradients_per_steps, self.sequence
        capacity = max(1, config.capacity // steps)
        return Replay(
            length=config.unroll,
            batch=max(1, config.batch_size // steps),
            every=every,
            repeats=repeats,
            capacity=capacity,
            warmup=min(-(-config.warmup // steps), capacity),
            n_step=config.n_step,
            kind=config.replay,
            sampler=config.sampler,
            alpha=config.alpha,
            beta=config.beta,
            replacement=config.replacement,
            save_limit=config.save_limit,
            fresh=self.task.fresh,
            sequence=steps,
        )

    @property
    def minibatches(self) -> Minibatches:
        return Minibatches(1, 1, False)

    def begun(self, params: Params, moments: Any, targets: Params) -> LearnerState:
        """The state of the first update. Targets are copies, because a donated buffer must not appear twice."""
        obs = self.task.spec.obs
        return LearnerState(
            params=params,
            moments=moments,
            obs=statistics.empty_moments(obs.shape) if self.config.normalise_obs and not obs.is_image else None,
            reward=RewardScale(statistics.empty_moments(()), jnp.zeros(self.task.envs, jnp.float32))
            if self.config.normalise_reward
            else None,
            step=jnp.zeros((), jnp.int32),
            progress=jnp.zeros((), jnp.float32),
            extra={"target": jax.tree.map(jnp.copy, targets)},
        )

    def rate(self, state: LearnerState) -> Array:
        start = self.config.learning_rate
        return schedules.linear(start, start * self.config.final_rate, state.progress)

    def acting(self, params: Params, state: LearnerState, explore: dict[str, Array]) -> ActorState:
        """The actor's state: params of the policy, normaliser, exploration."""
        if state.obs is None:
            return ActorState(params, None, None, explore)
        return ActorState(params, state.obs.mean, 1.0 / (statistics.std(state.obs) + 1e-8), explore)

    def seen(self, mean: Array | None, scale: Array | None, obs: Array) -> Array:
        """Observations as the net sees them."""
        return obs if mean is None else jnp.clip((obs - mean) * scale, -10.0, 10.0)

    def earned(self, before: Array, reward: Array, boundary: Array, valid: Array) -> Array:
        seen = returns.learnt(reward, self.config.reward_clip, self.config.reward_scale)
        return statistics.discounted_returns(before, seen, boundary, valid, self.config.gamma)[0]

    def prepare(
        self, state: LearnerState, acted: ActorState | None, trajectory: Trajectory, key: Array
    ) -> tuple[LearnerState, Kept]:
        """n-step rows with raw observations and rewards, which are normalised when they are drawn."""
        tr, config = trajectory, self.config
        if state.obs is not None:
            state = state._replace(obs=statistics.update_moments(state.obs, tr.obs[:-1], tr.valid))
        reward = returns.learnt(tr.reward, config.reward_clip, config.reward_scale)
        if state.reward is not None:
            before = state.reward._replace(returns=tr.carry[EARNED]) if self.task.mixed else state.reward
            scale = statistics.update_reward_scale(before, reward, tr.boundary, tr.valid, config.gamma)
            state = state._replace(reward=scale)
        if self.recurrent:
            if len(self.starts) > 1:
                memory = tr.extras[sequences.MEMORY][jnp.array(self.starts)]
            else:
                memory = sequences.packed({name: tr.carry[name] for name in self.net.initial_carry(1)})[None]
            shape = (self.starts, self.sequence, self.burn_in, config.gamma, config.n_step)
            return state, sequences.cut(tr, reward, memory, *shape)
        total, discount, length = q_learning.n_step_rows(
            reward, tr.discount, tr.boundary, tr.valid, config.gamma, config.n_step
        )
        t, b = reward.shape
        following = tr.obs[jnp.arange(t)[:, None] + length, jnp.arange(b)]
        return state, Kept(Transitions(tr.obs[:-1], tr.action, total, discount, following), tr.valid)

    def remembered(self, carry: dict[str, Array]) -> dict[str, Array]:
        """Extras of `act`: the memory before this step, where sequences begin inside an unroll."""
        if not self.recurrent or len(self.starts) == 1:
            return {}
        return {sequences.MEMORY: sequences.packed({name: carry[name] for name in self.net.initial_carry(1)})}

    def memory(self, rows: Sequences) -> dict[str, Array]:
        """The carry before the first step of drawn sequences."""
        return sequences.unpacked(rows.memory, self.net.initial_carry(1))

    def counted(self, rows: Transitions | Sequences) -> Array | float:
        """Weights with which a mean over a minibatch leaves out the steps that are not learnt from."""
        return sequences.share(rows.learnt) if isinstance(rows, Sequences) else 1.0

    def errors(self, td: Array, rows: Transitions | Sequences) -> Array:
        """[N] the error from which the priority of each drawn row is computed."""
        if isinstance(rows, Sequences):
            return sequences.priority(td, rows.learnt, self.config.priority_max)
        return jax.lax.stop_gradient(td)

    def learnt_rows(self, state: LearnerState, minibatch: Drawn) -> Any:
        """The rows of a minibatch, normalised with the current statistics: `Transitions`, or `Sequences` [L, N, ...]."""
        rows = minibatch.rows
        if self.recurrent:
            rows = sequences.time_major(rows)
            if state.obs is not None:
                rows = rows._replace(obs=self.seen(state.obs.mean, 1.0 / (statistics.std(state.obs) + 1e-8), rows.obs))
        elif state.obs is not None:
            scale = 1.0 / (statistics.std(state.obs) + 1e-8)
            obs, next_obs = (self.seen(state.obs.mean, scale, x) for x in (rows.obs, rows.next_obs))
            rows = rows._replace(obs=obs, next_obs=next_obs)
        return rows._replace(reward=self.normalised(rows.reward, self.reward_unit(state)))

    def normalised(self, reward: Array, unit: Array) -> Array:
        """The rewards of drawn rows, each the sum of a window, as the action values count them."""
        if not self.config.normalise_reward:
            return reward
        return statistics.normalised_rewards(reward, unit, self.config.n_step)

    def reward_unit(self, state: LearnerState) -> Array:
        """The reward that corresponds to 1 in the action values."""
        return jnp.ones(()) if state.reward is None else statistics.std(state.reward.moments) + 1e-8

    def followed(self, state: LearnerState, params: Params, every: int, tau: float) -> LearnerState:
        """The state after a gradient. After every `every` gradients, counted over all workers, the target moves by `tau`."""
        workers = self.task.workers
        step, period = state.step + 1, max(1, every // workers)  # own gradients between two moves
        share = 1 - (1 - tau) ** (period * workers / every)
        due = step % period == 0

        def follow(old: Array, new: Array) -> Array:
            return jnp.where(due, new if share == 1 else old + share * (new - old), old)

        before = state.extra["target"]
        target = jax.tree.map(follow, before, {name: params[name] for name in before})
        return state._replace(params=params, step=step, extra={**state.extra, "target": target})

    def adopt(self, state: LearnerState, params: Params) -> LearnerState:
        """Take params from outside; the target network does not change until its next move."""
        return state._replace(params=params)
