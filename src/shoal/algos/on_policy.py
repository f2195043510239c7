"""What REINFORCE, A2C and PPO share: acting, normalisation, and the batch that each weighs in its own way."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from shoal.core.algorithm import (
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
    """The settings that every on-policy algorithm has."""

    learning_rate: PositiveFloat = 3e-4
    """step size at the start"""
    final_rate: Fraction = 1.0
    """share of the learning rate that is left at the end of the budget; 1 keeps it constant"""
    gamma: Fraction = 0.99
    """discount a step"""
    lam: Fraction = 0.95
    """GAE's lambda: 0 trusts the value function, 1 the returns"""
    unroll: Positive = 64
    """steps that each environment makes between two updates"""
    batch_size: NonNegative = 0
    """samples a gradient: the batch is cut into minibatches of this size or the nearest that divides it; 0 is all of it"""
    entropy: NonNegativeFloat = 0.0
    """weight of the entropy bonus"""
    final_entropy: Fraction = 1.0
    """share of the entropy bonus that is left at the end of the budget; 1 keeps it constant"""
    value_weight: NonNegativeFloat = 1.0
    """weight of the value loss, which is half the squared error"""
    max_grad_norm: PositiveFloat = 0.5
    """gradients with a larger global norm are scaled down to it"""
    normalise_advantage: bool = True
    """standardise advantages over the batch"""
    normalise_obs: bool = False
    """standardise observations by running statistics, which travel with the weights"""
    normalise_reward: bool = False
    """divide rewards by the running deviation of discounted returns, and cut what exceeds 10"""
    reward_clip: Literal["off", "sign"] = "off"
    """sign: learn from -1, 0 or 1 instead of the reward, before all else; scores count the reward as it is"""
    reward_scale: PositiveFloat = 1.0
    """rewards are multiplied by this first"""
    returns: Literal["auto", "gae", "vtrace"] = "auto"
    """the return estimator; auto: V-trace where older weights act than learn, unless the loss has a ratio of its own, as PPO's"""
    rho_clip: PositiveFloat = 1.0
    """V-trace: the most that a temporal difference and a policy gradient weigh"""
    c_clip: PositiveFloat = 1.0
    """V-trace: the most that a trace is carried on by"""


REWARD_LIMIT = 10.0  # normalised rewards are cut to plus or minus this: one outlier must not move every value


class Rows(NamedTuple):
    """A prepared batch: every array begins with [T, B], or with [N] once it is flattened."""

    obs: Array
    action: Array
    log_mu: Array  # log-probability under the policy that acted
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
    """The number of equal parts of `samples` that are nearest to `size` each (0: one part).

    The largest part that is no larger than `size`, unless it is smaller than half of it, as where `samples` is a prime: then the
    smallest that is larger.
    """
    if size == 0 or size >= samples:
        return 1
    sizes = [n for n in range(1, samples + 1) if samples % n == 0]
    below = max(n for n in sizes if n <= size)
    return samples // (below if 2 * below >= size else min(n for n in sizes if n > size))


@dataclass(frozen=True)
class OnPolicy(abc.ABC, Generic[C]):
    """Everything but the loss. Concrete algorithms are final: they fill in what is abstract and override nothing."""

    config: C
    task: Task
    net: Net

    Config: ClassVar[type[Any]]
    about: ClassVar[str]
    net_name: ClassVar[str] = "actor_critic"
    usual_topology: ClassVar[str] = "sync"
    replays: ClassVar[bool] = False
    topologies: ClassVar[tuple[str, ...]] = ()
    weighs: ClassVar[bool] = False  # the loss has a probability ratio of its own

    def __post_init__(self) -> None:
        if not hasattr(self.net, "policy"):
            raise BadInput(f"--net {type(self.net).__name__} has no policy: this algorithm takes --net actor_critic")

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
        """Whether returns are V-trace's."""
        if self.config.returns == "auto":
            return self.task.apart and not self.weighs
        return self.config.returns == "vtrace"

    @property
    def experience(self) -> Unrolls:
        return Unrolls(self.config.unroll, self.task.fresh)

    @property
    def minibatches(self) -> Minibatches:
        """Recurrent nets need whole columns, so there the batch size counts in columns of `unroll` steps."""
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
        """The policy alone: values are the learner's to compute, and log-probabilities too where it holds what acted."""
        params, carry = self.net.policy(actor.params, self.seen(actor, obs), carry, first)
        action = distributions.sample(self.task.spec.action, params, key, explore)
        if not self.task.apart:
            return action, {}, carry
        return action, {"log_prob": distributions.log_prob(self.task.spec.action, params, action)}, carry

    def uncertainty(self, actor: ActorState, obs: Array) -> Array:
        """The entropy of the policy at each of these observations, each taken as the first of an episode."""
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
        """Log-probabilities by the weights that acted, values by the newest, then advantages.

        Statistics are updated first, so that the values and the coming gradients see the same observations.
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
            reward = jnp.clip(reward / (statistics.std(scale.moments) + 1e-8), -REWARD_LIMIT, REWARD_LIMIT)
        seen = self.seen(self.actor_state(state), tr.obs)
        if self.traces:  # what both heads share is computed once
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
    """How far the policy has moved since it acted: the mean and the largest ratio, and the share that is clipped."""
    rows = batch.rows
    ratio = jnp.exp(jax.lax.stop_gradient(jnp.where(rows.valid, log_pi - rows.log_mu, 0.0)))
    return {
        "ratio/mean": losses.masked_mean(ratio, rows.valid),
        "ratio/max": jnp.max(ratio),
        "ratio/clipped": losses.masked_mean((ratio > clip).astype(jnp.float32), rows.valid),
    }
