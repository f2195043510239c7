"""DQN: action values from a replay, and a target network that follows slowly.

Mnih et al. 2015, https://doi.org/10.1038/nature14236; double: van Hasselt et al. 2016; dueling: Wang et al. 2016;
prioritized: Schaul et al. 2016; n-step: Hessel et al. 2018. Deviations: the minibatches of gradients that fall due together
are drawn at once, so that priorities follow after all of them; n-step windows end with the unroll; observations and rewards
may be normalised by running statistics, which hold for all rows whenever they were seen; Adam instead of RMSProp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final

import jax
import jax.numpy as jnp
import optax

from shoal.core.algorithm import (
    ActorState,
    Drawn,
    Feedback,
    Kept,
    LearnerState,
    Minibatches,
    Optimiser,
    Params,
    Replay,
    RewardScale,
    Task,
)
from shoal.core.config import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, replace
from shoal.core.errors import BadInput
from shoal.core.trajectory import EARNED, Array, Trajectory, Transitions
from shoal.nets.q_network import count_actions
from shoal.ops import losses, q_learning, returns, schedules, statistics


@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Deep Q-learning."""

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
    every: Positive = 4
    """environment steps between two rounds of gradients"""
    repeats: Positive = 1
    """gradients a round: more than one learns more from each step, at the price of computing"""
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
    """GiB of replay that a checkpoint may hold; a replay that may grow larger is not saved, and a resumed run fills it anew"""
    double: bool = True
    """choose the next action by the newest weights and value it by the target's"""
    loss: Literal["huber", "mse"] = "huber"
    """what is made of an error: straight beyond 1 (huber), or half its square"""
    target_every: Positive = 200
    """gradients between two moves of the target network"""
    tau: Fraction = 1.0
    """how far the target network moves then: 1 takes over the weights, 0.005 with every gradient follows softly"""
    epsilon_start: Fraction = 1.0
    """share of random actions at the start"""
    epsilon_end: Fraction = 0.02
    """share of random actions in the end"""
    explore: Fraction = 0.2
    """share of the budget over which epsilon falls"""
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


class QNet(Protocol):
    """Action values as a function of params. Hashable: two equal ones compile once."""

    def init(self, key: Array) -> Params: ...

    def q(self, params: Params, obs: Array) -> Array:
        """[..., *shape] -> [..., actions]."""


@final
@dataclass(frozen=True)
class DQN:
    config: DQNConfig
    task: Task
    net: QNet

    Config: ClassVar[type[Any]] = DQNConfig
    net_name: ClassVar[str] = "q_network"
    usual_topology: ClassVar[str] = "sync"
    replays: ClassVar[bool] = True
    topologies: ClassVar[tuple[str, ...]] = ()
    about: ClassVar[str] = (
        "deep Q-learning: a replay, a target network; double, dueling, n-step, prioritized as options"
    )

    def __post_init__(self) -> None:
        config = replace(self.config, {}, "algo.")
        count_actions(self.task.spec)
        if not hasattr(self.net, "q"):
            raise BadInput(f"--net {type(self.net).__name__} has no action values (q): dqn takes --net q_network")
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

    @property
    def experience(self) -> Replay:
        config = self.config
        return Replay(
            length=config.unroll,
            batch=config.batch_size,
            every=config.every,
            repeats=config.repeats,
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

    @property
    def optimiser(self) -> Optimiser:
        made: Optimiser = optax.scale_by_adam(eps=1e-8)
        return made

    def init(self, key: Array) -> LearnerState:
        params, obs = self.net.init(key), self.task.spec.obs
        return LearnerState(
            params=params,
            moments=self.optimiser.init(params),
            obs=statistics.empty_moments(obs.shape) if self.config.normalise_obs and not obs.is_image else None,
            reward=RewardScale(statistics.empty_moments(()), jnp.zeros(self.task.envs, jnp.float32))
            if self.config.normalise_reward
            else None,
            step=jnp.zeros((), jnp.int32),
            progress=jnp.zeros((), jnp.float32),
            extra={"target": params},
        )

    def rate(self, state: LearnerState) -> Array:
        start = self.config.learning_rate
        return schedules.linear(start, start * self.config.final_rate, state.progress)

    def epsilon(self, state: LearnerState) -> Array:
        """The share of random actions now."""
        share = state.progress / jnp.maximum(self.config.explore, 1e-6)
        return schedules.linear(self.config.epsilon_start, self.config.epsilon_end, share)

    def actor_state(self, state: LearnerState) -> ActorState:
        epsilon = jnp.asarray(self.epsilon(state), jnp.float32)
        if state.obs is None:
            return ActorState(state.params, None, None, epsilon)
        return ActorState(state.params, state.obs.mean, 1.0 / (statistics.std(state.obs) + 1e-8), epsilon)

    def initial_carry(self, envs: int) -> dict[str, Array]:
        return {}

    def act(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, key: Array, explore: Array
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        q = self.net.q(actor.params, self.seen(actor.obs_mean, actor.obs_scale, obs))  # [B, A]
        chance, which = jax.random.uniform(key, (2, q.shape[0]))  # one draw for both: keys cost more than numbers
        anything = jnp.minimum((which * q.shape[1]).astype(jnp.int32), q.shape[1] - 1)
        action = jnp.where(chance < actor.epsilon * explore, anything, jnp.argmax(q, axis=-1).astype(jnp.int32))
        return action.astype(self.task.spec.action.dtype), {}, carry

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

    def gradients(self, state: LearnerState, minibatch: Drawn, key: Array) -> tuple[Params, Feedback]:
        (grads, (td, metrics)) = jax.grad(self._loss, has_aux=True)(state.params, state, minibatch)
        grads, norm = losses.clip_by_global_norm(grads, self.config.max_grad_norm)
        return grads, Feedback({**metrics, "grad_norm": norm}, jnp.asarray(False), td)

    def _loss(
        self, params: Params, state: LearnerState, minibatch: Drawn
    ) -> tuple[Array, tuple[Array, dict[str, Array]]]:
        rows = minibatch.rows
        obs, next_obs, reward = rows.obs, rows.next_obs, rows.reward
        if state.obs is not None:
            scale = 1.0 / (statistics.std(state.obs) + 1e-8)
            obs, next_obs = (self.seen(state.obs.mean, scale, x) for x in (obs, next_obs))
        if state.reward is not None:
            reward = reward / self.reward_unit(state)
        q_tm1 = self.net.q(params, obs)
        q_t = self.net.q(state.extra["target"], next_obs)
        selector = self.net.q(params, next_obs) if self.config.double else q_t
        td = q_learning.td_error(q_tm1, rows.action, reward, rows.discount, q_t, selector)
        each = q_learning.huber(td) if self.config.loss == "huber" else 0.5 * jnp.square(td)
        loss = jnp.mean(minibatch.weight * each)
        metrics = {"value": loss, "q": jnp.mean(q_tm1), "td": jnp.mean(jnp.abs(td))}
        return loss, (jax.lax.stop_gradient(td), metrics)

    def reward_unit(self, state: LearnerState) -> Array:
        """The reward that counts 1 in the action values."""
        return jnp.ones(()) if state.reward is None else statistics.std(state.reward.moments) + 1e-8

    def settle(self, state: LearnerState, params: Params) -> LearnerState:
        """The target network moves `tau` of the way after every `target_every` gradients, of all workers together."""
        every, workers = self.config.target_every, self.task.workers
        step, tau = state.step + 1, 1 - (1 - self.config.tau) ** max(1, workers // every)
        due = step % max(1, every // workers) == 0

        def follow(old: Array, new: Array) -> Array:
            return jnp.where(due, new if tau == 1 else old + tau * (new - old), old)

        target = jax.tree.map(follow, state.extra["target"], params)
        return state._replace(params=params, step=step, extra={**state.extra, "target": target})

    def adopt(self, state: LearnerState, params: Params) -> LearnerState:
        """The target network stays: it follows at its next turn."""
        return state._replace(params=params)
