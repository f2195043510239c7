"""What DQN, DDPG, TD3 and SAC share: a replay, rows of n steps, normalisation, and a target that follows the weights."""

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
    """The settings that every algorithm with a replay has."""

    learning_rate: PositiveFloat = 5e-4
    """step size at the start"""
    final_rate: Fraction = 1.0
    """share of the learning rate that is left at the end of the budget; 1 keeps it constant"""
    gamma: Fraction = 0.99
    """discount a step"""
    unroll: Positive = 8
    """steps that each environment makes before what was seen is stored and learnt from"""
    batch_size: Positive = 128
    """rows a gradient"""
    capacity: Positive = 100_000
    """rows that the replay keeps, over all environments"""
    warmup: NonNegative = 1_000
    """rows in the replay before the first gradient"""
    n_step: Positive = 1
    """rewards before the bootstrap, at most `unroll`"""
    replay: Literal["uniform", "prioritized"] = "uniform"
    """how rows are drawn: all alike, or in proportion to their last error"""
    alpha: Fraction = 0.6
    """prioritized: 0 draws all alike, 1 in proportion to the error"""
    beta: Fraction = 0.4
    """prioritized: how much of the bias is put right by weights at the start; it rises to 1 with the budget"""
    replacement: bool = True
    """whether a row may be twice in one minibatch"""
    sampler: Literal["seeded", "cpprb"] = "seeded"
    """who keeps the priorities: seeded follows the run's seed; cpprb's tree draws by random numbers that cannot be repeated"""
    save_limit: NonNegativeFloat = 1.0
    """GiB of replay that a checkpoint may hold; a replay that may grow larger is not saved, and a resumed run fills it again"""
    max_grad_norm: PositiveFloat = 10.0
    """gradients with a larger global norm are scaled down to it"""
    normalise_obs: bool = False
    """standardise observations by running statistics, which travel with the weights"""
    normalise_reward: bool = False
    """divide rewards by the running deviation of discounted returns"""
    reward_clip: Literal["off", "sign"] = "off"
    """sign: learn from -1, 0 or 1 instead of the reward, before all else; scores count the reward as it is"""
    reward_scale: PositiveFloat = 1.0
    """rewards are multiplied by this first"""


C = TypeVar("C", bound=OffPolicyConfig)
N = TypeVar("N")


@dataclass(frozen=True)
class OffPolicy(abc.ABC, Generic[C, N]):
    """The way from unrolls to minibatches. Concrete algorithms add the loss and how to act."""

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
                "--algo.replacement is false: --algo.sampler cpprb draws with replacement alone; seeded can do both"
            )
        for name in ("batch_size", "warmup"):
            if getattr(config, name) > config.capacity:
                flag = name.replace("_", "-")
                raise BadInput(
                    f"--algo.{flag} is {getattr(config, name)}: more than the replay holds (--algo.capacity {config.capacity})"
                )

    @abc.abstractmethod
    def check(self) -> None:
        """Refuse a net or spaces that this algorithm cannot learn with."""

    @property
    @abc.abstractmethod
    def gradients_per_steps(self) -> tuple[int, int]:
        """(gradients, environment steps that earn them)."""

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
        """The state of the first update. Targets are copies: a buffer that is two things could not be given away."""
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
        """What acts: params of the policy, the normaliser, exploration."""
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
        """Rows of n steps, with observations and rewards as they were: they are normalised when they are learnt from."""
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
        """The rows of a minibatch by the statistics of now."""
        rows: Transitions = minibatch.rows
        if state.obs is not None:
            scale = 1.0 / (statistics.std(state.obs) + 1e-8)
            obs, next_obs = (self.seen(state.obs.mean, scale, x) for x in (rows.obs, rows.next_obs))
            rows = rows._replace(obs=obs, next_obs=next_obs)
        return rows if state.reward is None else rows._replace(reward=rows.reward / self.reward_unit(state))

    def reward_unit(self, state: LearnerState) -> Array:
        """The reward that counts 1 in the action values."""
        return jnp.ones(()) if state.reward is None else statistics.std(state.reward.moments) + 1e-8

    def followed(self, state: LearnerState, params: Params, every: int, tau: float) -> LearnerState:
        """`params` after a gradient. The target moves `tau` of the way after every `every` gradients, of all workers together."""
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
        """The target network stays: it follows at its next turn."""
        return state._replace(params=params)
