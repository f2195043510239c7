"""Shared code of DQN, DDPG, TD3 and SAC: replay, n-step rows, normalisation, and a target that follows the weights."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import jax
import jax.numpy as jnp

from shoal.core.algorithm import (
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
from shoal.core.trajectory import EARNED, Array, Trajectory, Transitions
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
    """rows per gradient"""
    capacity: Positive = 100_000
    """capacity of the replay in rows, over all environments"""
    warmup: NonNegative = 1_000
    """rows in the replay before the first gradient"""
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
    """divide rewards by the running standard deviation of discounted returns"""
    reward_clip: Literal["off", "sign"] = "off"
    """sign: learn from the reward's sign (-1, 0 or 1), taken before scaling and normalisation; scores use the original reward"""
    reward_scale: PositiveFloat = 1.0
    """factor of the rewards, applied before normalisation"""


C = TypeVar("C", bound=OffPolicyConfig)
N = TypeVar("N")


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
    topologies: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        config = replace(self.config, {}, "algo.")
        self.check()
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

    @property
    @abc.abstractmethod
    def gradients_per_steps(self) -> tuple[int, int]:
        """Ratio of gradients to environment steps: (gradients, steps)."""

    @property
    def experience(self) -> Replay:
        config, (repeats, every) = self.config, self.gradients_per_steps
        return Replay(
            length=config.unroll,
            batch=config.batch_size,
            every=every,
            repeats=repeats,
            capacity=config.capacity,
            warmup=config.warmup,
            n_step=config.n_step,
            kind=config.replay,
            sampler=config.sampler,
            alpha=config.alpha,
            beta=config.beta,
            replacement=config.replacement,
            save_limit=config.save_limit,
            fresh=self.task.fresh,
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
        total, discount, length = q_learning.n_step_rows(
            reward, tr.discount, tr.boundary, tr.valid, config.gamma, config.n_step
        )
        t, b = reward.shape
        following = tr.obs[jnp.arange(t)[:, None] + length, jnp.arange(b)]
        return state, Kept(Transitions(tr.obs[:-1], tr.action, total, discount, following), tr.valid)

    def learnt_rows(self, state: LearnerState, minibatch: Drawn) -> Transitions:
        """The rows of a minibatch, normalised with the current statistics."""
        rows: Transitions = minibatch.rows
        if state.obs is not None:
            scale = 1.0 / (statistics.std(state.obs) + 1e-8)
            obs, next_obs = (self.seen(state.obs.mean, scale, x) for x in (rows.obs, rows.next_obs))
            rows = rows._replace(obs=obs, next_obs=next_obs)
        return rows if state.reward is None else rows._replace(reward=rows.reward / self.reward_unit(state))

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
