"""Shared code of REINFORCE, A2C and PPO: acting, normalisation, and the preparation of batches."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from shoal.core.algorithm import (
    NO_SETTINGS,
    ActorState,
    Feedback,
    LearnerState,
    Minibatches,
    Optimiser,
    ParamGroup,
    Params,
    RewardScale,
    Task,
    Unrolls,
)
from shoal.core.config import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat
from shoal.core.errors import BadInput
from shoal.core.trajectory import EARNED, Array, Trajectory
from shoal.nets.actor_critic import Net
from shoal.ops import distributions, losses, returns, schedules, statistics
from shoal.ops.vtrace import vtrace


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """Settings of every on-policy algorithm."""

    learning_rate: PositiveFloat = 3e-4
    """learning rate at the start"""
    final_rate: Fraction = 1.0
    """share of the learning rate that remains at the end of the budget; 1 keeps it constant"""
    gamma: Fraction = 0.99
    """discount per step"""
    lam: Fraction = 0.95
    """GAE's lambda: 0 trusts the value function, 1 the returns"""
    unroll: Positive = 64
    """steps of each environment between two updates"""
    batch_size: NonNegative = 0
    """samples per gradient: the batch is cut into minibatches of this size or the nearest that divides it; 0 is the whole batch"""
    entropy: NonNegativeFloat = 0.0
    """weight of the entropy bonus"""
    final_entropy: Fraction = 1.0
    """share of the entropy bonus that remains at the end of the budget; 1 keeps it constant"""
    value_weight: NonNegativeFloat = 1.0
    """weight of the value loss, which is half the squared error"""
    max_grad_norm: PositiveFloat = 0.5
    """largest global norm of a gradient; larger gradients are scaled down"""
    normalise_advantage: bool = True
    """standardise advantages over the batch"""
    normalise_obs: bool = False
    """standardise observations by running statistics, which are part of the weights that actors receive"""
    normalise_reward: bool = False
    """divide rewards by the running standard deviation of discounted returns, and clip them to 10"""
    reward_clip: Literal["off", "sign"] = "off"
    """sign: learn from the reward's sign (-1, 0 or 1), taken before scaling and normalisation; scores use the original reward"""
    reward_scale: PositiveFloat = 1.0
    """factor of the rewards, applied before normalisation"""
    returns: Literal["auto", "gae", "vtrace"] = "auto"
    """return estimator; auto: V-trace if the acting weights may be stale, unless the loss has its own probability ratio (PPO)"""
    rho_clip: PositiveFloat = 1.0
    """V-trace: largest importance weight of temporal differences and policy gradients (rho)"""
    c_clip: PositiveFloat = 1.0
    """V-trace: largest importance weight along a trace (c)"""


class Rows(NamedTuple):
    """A prepared batch: every array begins with [T, B], or with [N] once it is flattened."""

    obs: Array
    action: Array
    log_mu: Array  # log-probability under the behaviour policy
    value: Array  # before the update
    advantage: Array
    target: Array  # of the value function
    valid: Array
    first: Array


class Batch(NamedTuple):
    rows: Rows
    columns: dict[str, Array]  # [B, ...] the recurrent state before row 0


C = TypeVar("C", bound=OnPolicyConfig)


def even_split(samples: int, size: int) -> int:
    """Number of equal parts of `samples` whose size is nearest to `size` (0: one part).

    The parts have the largest possible size up to `size`. If that is below half of `size`, as when `samples` is prime, they have
    the smallest possible size above it.
    """
    if size == 0 or size >= samples:
        return 1
    sizes = [n for n in range(1, samples + 1) if samples % n == 0]
    below = max(n for n in sizes if n <= size)
    return samples // (below if 2 * below >= size else min(n for n in sizes if n > size))


@dataclass(frozen=True)
class OnPolicy(abc.ABC, Generic[C]):
    """Base of on-policy algorithms: everything except the loss. Concrete algorithms implement it and override nothing."""

    config: C
    task: Task
    net: Net

    Config: ClassVar[type[Any]]
    about: ClassVar[str]
    net_name: ClassVar[str] = "actor_critic"
    usual_topology: ClassVar[str] = "sync"
    replays: ClassVar[bool] = False
    if_trained: ClassVar[Mapping[str, Any]] = NO_SETTINGS
    topologies: ClassVar[tuple[str, ...]] = ()
    weighs: ClassVar[bool] = False  # the loss has its own probability ratio

    def __post_init__(self) -> None:
        if not isinstance(self.net, Net):
            raise BadInput(
                f"--net {type(self.net).__name__} has no policy and value: this algorithm takes --net actor_critic"
            )

    @property
    @abc.abstractmethod
    def epochs(self) -> int: ...

    @property
    @abc.abstractmethod
    def optimiser(self) -> Optimiser: ...

    @property
    def groups(self) -> tuple[ParamGroup, ...]:
        return ()

    @abc.abstractmethod
    def loss(self, params: Params, state: LearnerState, batch: Batch) -> tuple[Array, dict[str, Array]]: ...

    @abc.abstractmethod
    def should_stop(self, metrics: dict[str, Array]) -> Array: ...

    @property
    def lam(self) -> float:
        return self.config.lam

    @property
    def traces(self) -> bool:
        """Whether the return estimator is V-trace."""
        if self.config.returns == "auto":
            return self.task.apart and not self.weighs
        return self.config.returns == "vtrace"

    @property
    def experience(self) -> Unrolls:
        return Unrolls(self.config.unroll, self.task.fresh)

    @property
    def minibatches(self) -> Minibatches:
        """How a batch is cut. For recurrent nets the batch size is rounded to whole columns of `unroll` steps."""
        by_column = self.net.recurrent
        if by_column:
            size = max(1, self.config.batch_size // self.config.unroll) if self.config.batch_size else 0
            return Minibatches(self.epochs, even_split(self.task.envs, size), True)
        return Minibatches(self.epochs, even_split(self.task.envs * self.config.unroll, self.config.batch_size), False)

    def init(self, key: Array) -> LearnerState:
        params = self.net.init(key)
        obs = self.task.spec.obs
        normalise = self.config.normalise_obs and not obs.is_image
        return LearnerState(
            params=params,
            moments=self.optimiser.init(params),
            obs=statistics.empty_moments(obs.shape) if normalise else None,
            reward=RewardScale(statistics.empty_moments(()), jnp.zeros(self.task.envs, jnp.float32))
            if self.config.normalise_reward
            else None,
            step=jnp.zeros((), jnp.int32),
            progress=jnp.zeros((), jnp.float32),
            extra={},
        )

    def entropy_weight(self, state: LearnerState) -> Array | float:
        start = self.config.entropy
        if self.config.final_entropy == 1:
            return start
        return schedules.linear(start, start * self.config.final_entropy, state.progress)

    def rate(self, state: LearnerState) -> Array:
        start = self.config.learning_rate
        return schedules.linear(start, start * self.config.final_rate, state.progress)

    def actor_state(self, state: LearnerState) -> ActorState:
        policy = {name: part for name, part in state.params.items() if name != "value"}
        if state.obs is None:
            return ActorState(policy, None, None)
        return ActorState(policy, state.obs.mean, 1.0 / (statistics.std(state.obs) + 1e-8))

    def initial_carry(self, envs: int) -> dict[str, Array]:
        return self.net.initial_carry(envs)

    def act(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, key: Array, explore: Array
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        """Sample actions. The learner computes values, and log-probabilities too if it still holds the acting weights."""
        params, carry = self.net.policy(actor.params, self.seen(actor, obs), carry, first)
        action = distributions.sample(self.task.spec.action, params, key, explore)
        if not self.task.apart:
            return action, {}, carry
        return action, {"log_prob": distributions.log_prob(self.task.spec.action, params, action)}, carry

    def uncertainty(self, actor: ActorState, obs: Array) -> Array:
        """The policy's entropy at each of these observations, each treated as the first of an episode."""
        first = jnp.ones(len(obs), bool)
        params, _ = self.net.policy(actor.params, self.seen(actor, obs), self.net.initial_carry(len(obs)), first)
        return distributions.entropy(self.task.spec.action, params)

    def seen(self, actor: ActorState, obs: Array) -> Array:
        """Observations as the policy sees them."""
        if actor.obs_mean is None:
            return obs
        return jnp.clip((obs - actor.obs_mean) * actor.obs_scale, -10.0, 10.0)

    def earned(self, before: Array, reward: Array, boundary: Array, valid: Array) -> Array:
        seen = returns.learnt(reward, self.config.reward_clip, self.config.reward_scale)
        return statistics.discounted_returns(before, seen, boundary, valid, self.config.gamma)[0]

    def prepare(
        self, state: LearnerState, acted: ActorState | None, trajectory: Trajectory, key: Array
    ) -> tuple[LearnerState, Batch]:
        """Prepare a batch: log-probabilities of the acting weights, values of the newest weights, then advantages.

        Statistics are updated first, so that values and gradients see the same normalised observations.
        """
        tr, config = trajectory, self.config
        memory = {name: array for name, array in tr.carry.items() if name != EARNED}
        if state.obs is not None:
            state = state._replace(obs=statistics.update_moments(state.obs, tr.obs[:-1], tr.valid))
        reward = returns.learnt(tr.reward, config.reward_clip, config.reward_scale)
        if state.reward is not None:
            before = state.reward._replace(returns=tr.carry[EARNED]) if self.task.mixed else state.reward
            scale = statistics.update_reward_scale(before, reward, tr.boundary, tr.valid, config.gamma)
            state = state._replace(reward=scale)
            reward = statistics.normalised_rewards(reward, statistics.std(scale.moments) + 1e-8)
        seen = self.seen(self.actor_state(state), tr.obs)
        if self.traces:  # one forward pass for both heads
            newest, value = self.net.forward(state.params, seen, memory, tr.first)  # [T+1, B]
        else:
            value = self.net.value(state.params, seen, memory, tr.first)
        if acted is None:
            log_mu = tr.extras["log_prob"]
        else:
            acted_params = {**acted.params, "value": state.params["value"]}
            policy, _ = self.net.forward(acted_params, self.seen(acted, tr.obs[:-1]), memory, tr.first[:-1])
            log_mu = distributions.log_prob(self.task.spec.action, policy, tr.action)
        rewards = (reward, tr.discount, value, tr.boundary, tr.valid, config.gamma, self.lam)
        if self.traces:
            log_pi = distributions.log_prob(self.task.spec.action, newest[:-1], tr.action)
            found = vtrace(log_pi, log_mu, *rewards, config.rho_clip, config.c_clip)
            target = found.target
            advantage = found.advantage * (1.0 if self.weighs else jnp.minimum(config.rho_clip, found.rho))
        else:
            advantage = returns.gae(*rewards)
            target = advantage + value[:-1]
        if config.normalise_advantage:
            advantage = losses.standardise(advantage, tr.valid)
        rows = Rows(seen[:-1], tr.action, log_mu, value[:-1], advantage, target, tr.valid, tr.first[:-1])
        return state, Batch(jax.lax.stop_gradient(rows), memory)

    def gradients(self, state: LearnerState, minibatch: Batch, key: Array) -> tuple[Params, Feedback]:
        grads, metrics = jax.grad(self.loss, has_aux=True)(state.params, state, minibatch)
        grads, norm = losses.clip_by_global_norm(grads, self.config.max_grad_norm)
        return grads, Feedback({**metrics, "grad_norm": norm}, self.should_stop(metrics))

    def settle(self, state: LearnerState, params: Params) -> LearnerState:
        return state._replace(params=params, step=state.step + 1)

    def adopt(self, state: LearnerState, params: Params) -> LearnerState:
        return state._replace(params=params)

    def evaluate(self, params: Params, batch: Batch) -> tuple[Array, Array, Array]:
        """(log pi(a|s), entropy, value) of a minibatch under `params`."""
        rows = batch.rows
        policy, value = self.net.forward(params, rows.obs, batch.columns, rows.first)
        action = self.task.spec.action
        return distributions.log_prob(action, policy, rows.action), distributions.entropy(action, policy), value


def rmsprop(decay: float, epsilon: float, initial: float) -> Optimiser:
    made: Optimiser = optax.scale_by_rms(decay=decay, eps=epsilon, initial_scale=initial)
    return made


def adam(epsilon: float) -> Optimiser:
    made: Optimiser = optax.scale_by_adam(eps=epsilon)
    return made


def momentum(decay: float) -> Optimiser:
    made: Optimiser = optax.trace(decay)
    return made


def never(metrics: dict[str, Array]) -> Array:
    return jnp.asarray(np.False_)


def ratios(log_pi: Array, batch: Batch, clip: float) -> dict[str, Array]:
    """Metrics of how far the policy has moved since it acted: mean and largest ratio, and the clipped share."""
    rows = batch.rows
    ratio = jnp.exp(jax.lax.stop_gradient(jnp.where(rows.valid, log_pi - rows.log_mu, 0.0)))
    return {
        "ratio/mean": losses.masked_mean(ratio, rows.valid),
        "ratio/max": jnp.max(ratio),
        "ratio/clipped": losses.masked_mean((ratio > clip).astype(jnp.float32), rows.valid),
    }
