"""DQN: action values from a replay, with a target network that follows slowly.

Mnih et al. 2015, https://doi.org/10.1038/nature14236; double: van Hasselt et al. 2016; dueling: Wang et al. 2016;
prioritized: Schaul et al. 2016; n-step: Hessel et al. 2018; recurrent: Kapturowski et al. 2019. Deviations: the minibatches of
all gradients in a round are drawn together, and priorities are updated after the round; n-step windows end with the unroll;
observations and rewards may be normalised, always with the current running statistics, however old the row; Adam instead of
RMSProp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, final, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from shoal.algos import sequences
from shoal.algos.off_policy import OffPolicy, OffPolicyConfig
from shoal.core.algorithm import ActorState, Drawn, Feedback, LearnerState, Optimiser, ParamGroup, Params
from shoal.core.config import Fraction, Positive
from shoal.core.errors import BadInput
from shoal.core.trajectory import Array, Sequences, Transitions
from shoal.nets.q_network import count_actions
from shoal.ops import losses, q_learning, schedules


@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """Deep Q-learning."""

    every: Positive = 4
    """environment steps between two rounds of gradients"""
    repeats: Positive = 1
    """gradients per round: more learn more from each step but need more computation"""
    double: bool = True
    """double Q-learning: choose the next action with the newest weights, evaluate it with the target network"""
    loss: Literal["huber", "mse"] = "huber"
    """loss of an error: huber is linear beyond 1, mse is half its square"""
    target_every: Positive = 200
    """gradients between two moves of the target network"""
    tau: Fraction = 1.0
    """share of the distance to the weights that the target network moves: 1 copies the weights, 0.005 follows softly"""
    epsilon_start: Fraction = 1.0
    """share of random actions at the start; by default that of `epsilon_end` in a run that begins with trained weights (--from)"""
    epsilon_end: Fraction = 0.02
    """share of random actions at the end"""
    explore: Fraction = 0.2
    """share of the budget over which epsilon falls"""


@runtime_checkable
class ActionValues(Protocol):
    """Action values as a function of params. Hashable: two equal ones compile once."""

    @property
    def recurrent(self) -> bool: ...

    def init(self, key: Array) -> Params: ...

    def q(self, params: Params, obs: Array) -> Array:
        """[..., *shape] -> [..., actions]."""


class QNet(ActionValues, Protocol):
    """The whole of a net for DQN. A feed-forward one uses only `q`; a recurrent one `step` to act and `sequence` to learn."""

    def initial_carry(self, envs: int) -> dict[str, Array]: ...

    def step(self, params: Params, obs: Array, carry: dict[str, Array], first: Array) -> tuple[Array, dict[str, Array]]:
        """One step: obs [B, ...], first [B] -> (values [B, actions], carry)."""

    def sequence(self, params: Params, obs: Array, carry: dict[str, Array], first: Array, burn_in: int) -> Array:
        """[T, B, ...] from the carry before row 0 -> [T, B, actions]; no gradient passes row `burn_in` backwards."""


@final
@dataclass(frozen=True)
class DQN(OffPolicy[DQNConfig, QNet]):
    Config: ClassVar[type[Any]] = DQNConfig
    net_name: ClassVar[str] = "q_network"
    # A trained policy acts from the start: random actions would fill the replay without it.
    if_trained: ClassVar[Mapping[str, Any]] = MappingProxyType({"epsilon_start": DQNConfig.epsilon_end})
    about: ClassVar[str] = (
        "deep Q-learning: a replay, a target network; double, dueling, n-step, prioritized as options"
    )

    def check(self) -> None:
        count_actions(self.task.spec)
        if not isinstance(self.net, ActionValues):
            raise BadInput(f"--net {type(self.net).__name__} has no action values (q): dqn takes --net q_network")

    @property
    def gradients_per_steps(self) -> tuple[int, int]:
        return self.config.repeats, self.config.every

    @property
    def optimiser(self) -> Optimiser:
        made: Optimiser = optax.scale_by_adam(eps=1e-8)
        return made

    @property
    def groups(self) -> tuple[ParamGroup, ...]:
        return ()

    def init(self, key: Array) -> LearnerState:
        params = self.net.init(key)
        return self.begun(params, self.optimiser.init(params), params)

    def epsilon(self, state: LearnerState) -> Array:
        """Current share of random actions."""
        share = state.progress / jnp.maximum(self.config.explore, 1e-6)
        return schedules.linear(self.config.epsilon_start, self.config.epsilon_end, share)

    def actor_state(self, state: LearnerState) -> ActorState:
        return self.acting(state.params, state, {"epsilon": jnp.asarray(self.epsilon(state), jnp.float32)})

    def initial_carry(self, envs: int) -> dict[str, Array]:
        return self.net.initial_carry(envs) if self.recurrent else {}

    def act(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, key: Array, explore: Array
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        extras, seen = self.remembered(carry), self.seen(actor.obs_mean, actor.obs_scale, obs)
        if self.recurrent:
            q, carry = self.net.step(actor.params, seen, carry, first)
        else:
            q = self.net.q(actor.params, seen)  # [B, A]
        chance, which = jax.random.uniform(key, (2, q.shape[0]))  # one draw for both: splitting keys is slower
        anything = jnp.minimum((which * q.shape[1]).astype(jnp.int32), q.shape[1] - 1)
        action = jnp.where(
            chance < actor.explore["epsilon"] * explore, anything, jnp.argmax(q, axis=-1).astype(jnp.int32)
        )
        return action.astype(self.task.spec.action.dtype), extras, carry

    def gradients(self, state: LearnerState, minibatch: Drawn, key: Array) -> tuple[Params, Feedback]:
        (grads, (td, metrics)) = jax.grad(self._loss, has_aux=True)(state.params, state, minibatch)
        grads, norm = losses.clip_by_global_norm(grads, self.config.max_grad_norm)
        return grads, Feedback({**metrics, "grad_norm": norm}, jnp.asarray(False), td)

    def _loss(
        self, params: Params, state: LearnerState, minibatch: Drawn
    ) -> tuple[Array, tuple[Array, dict[str, Array]]]:
        rows = self.learnt_rows(state, minibatch)
        q_tm1, q_t, selector = self._values(params, state.extra["target"], rows)
        td = q_learning.td_error(q_tm1, rows.action, rows.reward, rows.discount, q_t, selector)
        each = q_learning.huber(td) if self.config.loss == "huber" else 0.5 * jnp.square(td)
        counted = self.counted(rows)
        loss = jnp.mean(counted * minibatch.weight * each)
        metrics = {"value": loss, "q": jnp.mean(q_tm1), "td": jnp.mean(counted * jnp.abs(td))}
        return loss, (self.errors(td, rows), metrics)

    def _values(self, params: Params, target: Params, rows: Transitions | Sequences) -> tuple[Array, Array, Array]:
        """Values before the action, the target's after the window, and those that select the action there."""
        if isinstance(rows, Transitions):
            q_t = self.net.q(target, rows.next_obs)
            return self.net.q(params, rows.obs), q_t, self.net.q(params, rows.next_obs) if self.config.double else q_t
        memory = self.memory(rows)  # each net warms up its own from the one that acted
        new, old = (self.net.sequence(p, rows.obs, memory, rows.first, self.burn_in) for p in (params, target))
        q_t = sequences.at_bootstrap(old, rows.length)
        return new[:-1], q_t, sequences.at_bootstrap(new, rows.length) if self.config.double else q_t

    def settle(self, state: LearnerState, params: Params) -> LearnerState:
        """The state after a gradient. After every `target_every` gradients, counted over all workers, the target moves by `tau`."""
        return self.followed(state, params, self.config.target_every, self.config.tau)
