"""Shared code of DDPG, TD3 and SAC: critics of continuous actions, their gradients, warm-up, and Adam by parameter group."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from fractions import Fraction as Ratio
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algos import sequences
from shoal.algos.off_policy import OffPolicy, OffPolicyConfig
from shoal.core.algorithm import ActorState, Drawn, Feedback, LearnerState, Optimiser, ParamGroup, Params
from shoal.core.config import Fraction, NonNegativeFloat, Positive, PositiveFloat
from shoal.core.errors import BadInput
from shoal.core.trajectory import Array, Sequences, Transitions
from shoal.nets.continuous import ContinuousNet, count_entries, unbounded
from shoal.ops import continuous_control, losses

Rows = Transitions | Sequences

FINEST = 1000  # largest denominator of the ratio of gradients to steps


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig(OffPolicyConfig):
    """Settings of every algorithm for continuous actions."""

    learning_rate: PositiveFloat = 1e-3
    """learning rate of the critics at the start"""
    policy_rate: PositiveFloat = 1.0
    """learning rate of the policy, as a multiple of the critics'"""
    unroll: Positive = 16
    """steps of each environment between two additions to the replay"""
    batch_size: Positive = 256
    """rows per gradient"""
    updates_per_step: PositiveFloat = 1.0
    """gradients per environment step; below 1, several steps per gradient"""
    tau: Fraction = 0.005
    """share of the distance to the weights that the target networks move after each gradient of the policy"""
    max_grad_norm: PositiveFloat = 100.0
    """largest norm of the critics' gradient and of the policy's; larger gradients are scaled down"""
    action_scale: NonNegativeFloat = 0.0
    """bound for entries of an action that have no finite bounds: they lie between minus this and this; 0 refuses such actions"""
    warmup_noise: Literal["uniform", "ar1"] = "uniform"
    """actions before the first gradient: uniform, or ar1 for noise that is correlated over time"""
    warmup_phi: Fraction = 0.97
    """ar1: correlation of the noise of one step with that of the previous one"""


C = TypeVar("C", bound=ContinuousConfig)
N = TypeVar("N", bound=ContinuousNet)


@dataclass(frozen=True)
class ContinuousControl(OffPolicy[C, N]):
    """Base of algorithms for continuous actions. Concrete ones add the policy's noise and loss and the critics' target."""

    critics: ClassVar[int]

    def check(self) -> None:
        spec, config = self.task.spec, self.config
        count_entries(spec)
        if not isinstance(self.net, ContinuousNet):
            raise BadInput(f"--net {type(self.net).__name__} has no critics of continuous actions: leave --net out")
        open_ = [str(i) for i, free in enumerate(unbounded(spec)) if free]
        if open_ and not config.action_scale:
            raise BadInput(
                f"{spec.name}: actions have no finite bounds (entry {', '.join(open_)}); --algo.action-scale S lets them"
                " reach from -S to S"
            )
        if config.updates_per_step < 1 / FINEST:
            raise BadInput(f"--algo.updates-per-step is {config.updates_per_step:g}: expected at least {1 / FINEST:g}")

    @property
    def gradients_per_steps(self) -> tuple[int, int]:
        ratio = Ratio(self.config.updates_per_step).limit_denominator(FINEST)
        return ratio.numerator, ratio.denominator

    @property
    def optimiser(self) -> Optimiser:
        return GroupAdam()

    @property
    def groups(self) -> tuple[ParamGroup, ...]:
        return ParamGroup("critic"), ParamGroup("policy", self.config.policy_rate)

    @property
    def scale(self) -> np.ndarray:
        """[A] the environment's action that corresponds to 1."""
        return np.where(unbounded(self.task.spec), self.config.action_scale, 1.0).astype(np.float32)

    # Acting.

    @abc.abstractmethod
    def explore(self, state: LearnerState) -> dict[str, Array]:
        """Current exploration settings of the algorithm, each []."""

    @abc.abstractmethod
    def noise_carry(self, envs: int) -> dict[str, Array]:
        """State of the correlated noise at the start of an episode."""

    @abc.abstractmethod
    def explored(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, noise: Array, explore: Array
    ) -> tuple[Array, dict[str, Array]]:
        """(action in [-1, 1], carry) after warm-up, from standard normal `noise` [B, A]."""

    def actor_state(self, state: LearnerState) -> ActorState:
        """The policy's part of the state; the critics stay with the learner.

        Actions are random until the first gradient. A state that begins with another run's weights has its count of gradients.
        """
        warm = (state.step == 0).astype(jnp.float32)
        return self.acting({"policy": state.params["policy"]}, state, {**self.explore(state), "warmup": warm})

    def initial_carry(self, envs: int) -> dict[str, Array]:
        carry = {**self.noise_carry(envs), **self.net.initial_carry(envs)}
        if self.config.warmup_noise == "ar1":
            carry = {**carry, "warmup": jnp.zeros((envs, count_entries(self.task.spec)), jnp.float32)}
        return carry

    def act(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, key: Array, explore: Array
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        envs, entries = obs.shape[0], count_entries(self.task.spec)
        noise, random = jax.random.normal(key, (2, envs, entries), jnp.float32)  # one draw: splitting keys is slower
        extras, seen = self.remembered(carry), self.seen(actor.obs_mean, actor.obs_scale, obs)
        if self.recurrent:
            before = {name: carry[name] for name in self.net.initial_carry(1)}
            seen, memory = self.net.step(actor.params["policy"], seen, before, first)
            carry = {**carry, **memory}
        action, after = self.explored(actor, seen, carry, first, noise, explore)
        if "warmup" in carry:
            going_on = continuous_control.autoregressive(carry["warmup"], random, self.config.warmup_phi)
            random = jnp.where(first[:, None], random, going_on)
            after = {**after, "warmup": random}
            random = jnp.clip(random, -1.0, 1.0)
        else:
            random = jax.lax.erf(random * 0.5**0.5)  # uniform in [-1, 1]
        warm = (actor.explore["warmup"] > 0) & (explore > 0)
        return jnp.where(warm[:, None], random, action) * self.scale, extras, after

    # Learning.

    def views(self, group: str, part: Params, rows: Rows) -> tuple[Array, Array]:
        """Inputs of `part`, the params of the policy or of the critics: those before the action, and those after the window.

        A policy's memory begins as it was when acting. Actors do not run the critics, so theirs begins empty: both are warmed up.
        """
        if isinstance(rows, Transitions):
            return rows.obs, rows.next_obs
        carry = self.memory(rows)
        if group == "critic":
            carry = {name: jnp.zeros_like(array) for name, array in carry.items()}
        seen = self.net.sequence(part, rows.obs, carry, rows.first, self.burn_in)
        return seen[:-1], sequences.at_bootstrap(seen, rows.length)

    @abc.abstractmethod
    def target(self, state: LearnerState, rows: Rows, key: Array) -> Array:
        """[N] (sequences: [L, N]) target values of the critics for these rows."""

    @abc.abstractmethod
    def policy_loss(
        self, params: Params, critic: Params, rows: Rows, seen: Array, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The loss of all groups but the critics, and metrics. `seen` are the critics' inputs for the rows."""

    @property
    @abc.abstractmethod
    def delay(self) -> int:
        """Gradients of the critics per gradient of the policy and per move of the targets."""

    def gradients(self, state: LearnerState, minibatch: Drawn, key: Array) -> tuple[Params, Feedback]:
        """Gradients of critics and policy at the same weights, clipped separately."""
        rows = self.learnt_rows(state, minibatch)
        target_key, policy_key = jax.random.split(key)
        # Behind a barrier: XLA would fuse SAC's entropy into the critics' gradient, and compute it once for each hidden unit.
        barrier: Any = jax.lax.optimization_barrier
        target = barrier(self.target(state, rows, target_key))
        critic, counted = state.params["critic"], self.counted(rows)

        def critic_loss(critic: Params) -> tuple[Array, tuple[Array, Array, Array]]:
            seen, _ = self.views("critic", critic, rows)
            q_tm1 = self.net.q(critic, seen, rows.action / self.scale)
            loss, td = continuous_control.critic_loss(q_tm1, target, counted * minibatch.weight)
            return loss, (td, jnp.mean(q_tm1), jax.lax.stop_gradient(seen))

        (loss, (td, q, seen)), critic_grads = jax.value_and_grad(critic_loss, has_aux=True)(critic)
        others = {name: part for name, part in state.params.items() if name != "critic"}

        def policy(others: Params) -> tuple[Params, dict[str, Array]]:
            found: tuple[Params, dict[str, Array]] = jax.grad(self.policy_loss, has_aux=True)(
                others, critic, rows, seen, policy_key
            )
            return found

        moved = None
        if self.delay == 1:
            other_grads, metrics = policy(others)
        else:
            due = (state.step + 1) % self.delay == 0
            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(policy, others))
            other_grads, metrics = jax.lax.cond(due, policy, lambda _: nothing, others)
            moved = jnp.stack([jnp.asarray(True), *[due] * len(others)])
            # The policy's metrics are 0 in the gradients between: the factor makes their means right.
            metrics = {name: self.delay * value for name, value in metrics.items()}
        grads, norms = {}, []
        for name, part in {"critic": critic_grads, **other_grads}.items():
            grads[name], norm = losses.clip_by_global_norm(part, self.config.max_grad_norm)
            norms.append(norm)
        metrics = {"value": loss, "q": q, "td": jnp.mean(counted * jnp.abs(td)), **metrics}
        metrics["grad_norm"] = jnp.sqrt(jnp.sum(jnp.square(jnp.stack(norms))))
        return grads, Feedback(metrics, jnp.asarray(False), self.errors(td, rows), moved)

    def settle(self, state: LearnerState, params: Params) -> LearnerState:
        """The state with these params; the targets move when the policy does."""
        return self.followed(state, params, self.delay, self.config.tau)


class AdamState(NamedTuple):
    """Running means of Adam and their weights, each shaped like the params."""

    mu: Any  # of the gradients
    nu: Any  # of their squares
    mu_weight: Any  # 1 - b1^t, where t counts the gradients that moved this entry
    nu_weight: Any


class GroupAdam(NamedTuple):
    """Adam without its learning rate (Kingma and Ba 2015), with a bias correction per entry instead of one count.

    Entries that a gradient leaves out do not change, so that each parameter group behaves as if it had its own Adam, and the
    transformation works on any slice of a vector. If every gradient moves all entries, it equals optax's Adam.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def init(self, params: Any) -> AdamState:
        return AdamState(*(jax.tree.map(jnp.zeros_like, params) for _ in AdamState._fields))

    def update(self, updates: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        def mean(old: Any, new: Any, decay: float) -> Any:
            return jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, old, new)

        ones = jax.tree.map(jnp.ones_like, updates)
        after = AdamState(
            mean(state.mu, updates, self.b1),
            mean(state.nu, jax.tree.map(jnp.square, updates), self.b2),
            mean(state.mu_weight, ones, self.b1),
            mean(state.nu_weight, ones, self.b2),
        )
        steps = jax.tree.map(lambda m, n, w, v: m / w / (jnp.sqrt(jnp.maximum(n / v, 0.0)) + self.eps), *after)
        return steps, after
