"""Deep Dyna-Q: DQN that also learns from the experience that a world model imagines.

Sutton 1990, "Integrated architectures for learning, planning, and reacting"; prioritized sweeping: Moore and Atkeson 1993;
short branches from real states: Janner et al. 2019, https://arxiv.org/abs/1906.08253; exploration bonus: Dyna-Q+ (Sutton and
Barto 2018, section 8.3), with the ensemble's disagreement in place of the time since a visit. Deviations: the model is an
ensemble of nets; a neural model has no predecessors to sweep back to, so prioritized sweeping chooses the real states where
imagination starts, and the imagined rows to learn from, by the size of their error.

Real experience is processed exactly as in DQN. Imagined experience consists of single steps with their own mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import optax

from shoal.algos.dqn import DQN, DQNConfig, QNet
from shoal.core.algorithm import (
    ActorState,
    Drawn,
    Feedback,
    Kept,
    LearnerState,
    Minibatches,
    Moments,
    Optimiser,
    ParamGroup,
    Params,
    Replay,
    Task,
)
from shoal.core.config import Fraction, NonNegativeFloat, Positive, PositiveFloat
from shoal.core.errors import BadInput
from shoal.core.trajectory import Array, Trajectory, Transitions
from shoal.nets import world_model
from shoal.nets.q_network import count_actions
from shoal.nets.world_model import ModelErrors, Scales, WorldModel
from shoal.ops import q_learning, schedules, statistics

CANDIDATES = 4  # candidate real states for each state where imagination starts


@dataclass(frozen=True, kw_only=True)
class DynaQConfig(DQNConfig):
    """DQN and a world model."""

    ratio: NonNegativeFloat = 4.0
    """gradients on imagined experience per gradient on real experience, at the start; with `adapt` the maximum"""
    final_ratio: NonNegativeFloat = 0.0
    """the ratio at the end of the budget, reached linearly: imagination helps most while real experience is scarce"""
    adapt: bool = True
    """reduce the ratio as the model's error on held-out experience grows"""
    tolerance: PositiveFloat = 0.3
    """adapt: model error at which the ratio is 0: the largest of the errors of state change, reward and termination; an error
    of 1 is no better than predicting the mean"""
    horizon: Positive = 3
    """most steps imagined from a real state"""
    starts: Positive = 128
    """real states from which one round of imagination starts"""
    random_share: Fraction = 0.3
    """smallest share of random actions in imagination: they cover actions that were never tried"""
    sweeping: bool = False
    """prioritized sweeping: start imagination, and choose rows to learn from, where the values' error is largest"""
    bonus: NonNegativeFloat = 0.1
    """explorers: reward for a disagreement of one standard deviation between the model's members, in units of action values"""
    mix: Fraction = 0.5
    """share of real rows in the minibatches of imagined experience, to limit the effect of model errors"""
    imagined: Positive = 20_000
    """number of imagined rows that are kept, at least `batch_size`"""
    model_hidden: tuple[Positive, ...] = (64, 64)
    """widths of the model's dense layers"""
    members: Positive = 3
    """number of nets in the ensemble"""
    model_rate: PositiveFloat = 1e-3
    """learning rate of the model's Adam"""
    model_batch: Positive = 128
    """real rows per gradient of each member"""
    model_gradients: Positive = 64
    """model gradients before each round of imagination"""
    holdout: Fraction = 0.1
    """share of the real rows that are held out from the model, to measure its error"""


class Imagined(NamedTuple):
    """Imagined rows in the order [H, N], with their mask."""

    rows: Transitions
    valid: Array
    disagreement: Array  # [] mean over unmasked rows


@final
@dataclass(frozen=True)
class DynaQ:
    config: DynaQConfig
    task: Task
    net: QNet

    Config: ClassVar[type[Any]] = DynaQConfig
    net_name: ClassVar[str] = "q_network"
    usual_topology: ClassVar[str] = "dyna"
    replays: ClassVar[bool] = True
    if_trained: ClassVar[Mapping[str, Any]] = DQN.if_trained
    topologies: ClassVar[tuple[str, ...]] = ("dyna",)  # no other topology has planners
    about: ClassVar[str] = "DQN that also learns from experience imagined by a world model"

    def __post_init__(self) -> None:
        config, obs = self.config, self.task.spec.obs
        if obs.is_image:
            raise BadInput(
                f"{self.task.spec.name}: its observations are images; dyna_q's world model takes vectors: use dqn"
            )
        if config.n_step != 1:
            raise BadInput(
                f"--algo.n-step is {config.n_step}: the world model learns single steps, so it must be 1 for dyna_q"
            )
        if not config.model_hidden:
            raise BadInput("--algo.model-hidden is empty: the world model needs at least one layer")
        if not 0.0 < config.holdout <= 0.5:
            raise BadInput(f"--algo.holdout is {config.holdout:g}: expected more than 0 and at most 0.5")
        if config.imagined < config.batch_size:
            raise BadInput(
                f"--algo.imagined is {config.imagined}: fewer rows than a minibatch has (--algo.batch-size {config.batch_size})"
            )
        count_actions(self.task.spec)
        if self.dqn.recurrent:  # raises for settings that DQN refuses
            raise BadInput("--net.cell: dyna_q's world model imagines single steps, so its net has no memory: use dqn")

    @cached_property
    def dqn(self) -> DQN:
        return DQN(self.config, self.task, self.net)

    @cached_property
    def model(self) -> WorldModel:
        spec = self.task.spec
        return WorldModel(spec.obs.shape[0], count_actions(spec), self.config.model_hidden, self.config.members)

    # Delegated to DQN.

    @property
    def experience(self) -> Replay:
        return self.dqn.experience

    @property
    def minibatches(self) -> Minibatches:
        return self.dqn.minibatches

    @property
    def optimiser(self) -> Optimiser:
        return self.dqn.optimiser

    @property
    def groups(self) -> tuple[ParamGroup, ...]:
        return self.dqn.groups

    def rate(self, state: LearnerState) -> Array:
        return self.dqn.rate(state)

    def actor_state(self, state: LearnerState) -> ActorState:
        return self.dqn.actor_state(state)

    def initial_carry(self, envs: int) -> dict[str, Array]:
        return self.dqn.initial_carry(envs)

    def act(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, key: Array, explore: Array
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        return self.dqn.act(actor, obs, carry, first, key, explore)

    def earned(self, before: Array, reward: Array, boundary: Array, valid: Array) -> Array:
        return self.dqn.earned(before, reward, boundary, valid)

    def gradients(self, state: LearnerState, minibatch: Drawn, key: Array) -> tuple[Params, Feedback]:
        return self.dqn.gradients(state, minibatch, key)

    def settle(self, state: LearnerState, params: Params) -> LearnerState:
        return self.dqn.settle(state, params)

    def adopt(self, state: LearnerState, params: Params) -> LearnerState:
        return self.dqn.adopt(state, params)

    # The model.

    def init(self, key: Array) -> LearnerState:
        """DQN's state, with the model and the statistics of real experience added to `extra`."""
        state, n = self.dqn.init(key), self.model.inputs
        seen = {
            name: statistics.empty_moments(shape) for name, shape in (("obs", (n,)), ("change", (n,)), ("reward", ()))
        }
        box = (jnp.full(n, jnp.inf), jnp.full(n, -jnp.inf))
        model = self.model.init(jax.random.fold_in(key, 1))
        return state._replace(extra={**state.extra, "model": model, "seen": seen, "box": box})

    def prepare(
        self, state: LearnerState, acted: ActorState | None, trajectory: Trajectory, key: Array
    ) -> tuple[LearnerState, Kept]:
        state, kept = self.dqn.prepare(state, acted, trajectory, key)
        rows, seen = kept.rows, state.extra["seen"]
        new = {"obs": rows.obs, "change": rows.next_obs - rows.obs, "reward": rows.reward}
        seen = {name: statistics.update_moments(seen[name], x, kept.valid) for name, x in new.items()}
        (low, high), valid, axes = state.extra["box"], kept.valid[..., None], tuple(range(kept.valid.ndim))
        box = (
            jnp.minimum(low, jnp.where(valid, rows.obs, jnp.inf).min(axes)),
            jnp.maximum(high, jnp.where(valid, rows.obs, -jnp.inf).max(axes)),
        )
        return state._replace(extra={**state.extra, "seen": seen, "box": box}), kept

    def scales(self, state: LearnerState) -> Scales:
        """Units of the model's inputs and outputs, from all real experience so far."""
        seen = state.extra["seen"]
        units = [unit for name in ("obs", "change", "reward") for unit in _unit(seen[name])]
        return Scales(*[*units, self.dqn.reward_unit(state), *state.extra["box"]])

    @property
    def model_optimiser(self) -> Optimiser:
        made: Optimiser = optax.scale_by_adam()
        return made

    def train_model(self, params: Params, moments: Any, scales: Scales, rows: Transitions) -> tuple[Params, Any, Array]:
        """Fit the model, one gradient for each leading index of rows [steps, members, batch, ...]: (params, moments, mean loss)."""

        def loss(params: Params, part: Transitions) -> Array:
            told = self.model.predict_own(params, scales, part.obs, part.action)
            return self._errors(told, scales, part).total

        def one(carry: tuple[Params, Any], part: Transitions) -> tuple[tuple[Params, Any], Array]:
            params, moments = carry
            value, grads = jax.value_and_grad(loss)(params, part)
            updates, moments = self.model_optimiser.update(grads, moments, params)
            return (jax.tree.map(lambda p, u: p - self.config.model_rate * u, params, updates), moments), value

        (params, moments), losses = jax.lax.scan(one, (params, moments), rows)
        return params, moments, losses.mean()

    def model_errors(self, params: Params, scales: Scales, rows: Transitions) -> ModelErrors:
        """Errors of the model on held-out rows [N, ...]."""
        return self._errors(self.model.predict(params, scales, rows.obs, rows.action), scales, rows)

    def _errors(self, told: Any, scales: Scales, rows: Transitions) -> ModelErrors:
        return world_model.errors(told, scales, rows.obs, rows.next_obs, rows.reward, rows.discount == 0.0)

    def ratio(self, progress: float, error: float) -> float:
        """Gradients on imagined rows per gradient on real ones, at this progress and with this model error."""
        config = self.config
        share = max(0.0, 1.0 - error / config.tolerance) if config.adapt else 1.0
        return share * float(schedules.linear(config.ratio, config.final_ratio, progress))

    def imagine(
        self, params: Params, scales: Scales, actor: ActorState, candidates: Transitions, key: Array, explorer: bool
    ) -> Imagined:
        """Imagine branches of up to `horizon` steps from `starts` of the candidates [C, ...], which are real rows.

        Actions come from the epsilon-greedy policy, with additional random ones; an explorer takes the actions about which the
        model's members disagree most.
        """
        choose_key, member_key, act_key = jax.random.split(key, 3)
        obs = self._begin(params, scales, actor, candidates, choose_key, explorer)
        n = obs.shape[0]
        epsilon = jnp.maximum(actor.explore["epsilon"], self.config.random_share)
        strays = actor._replace(explore={**actor.explore, "epsilon": epsilon})
        member = jax.random.randint(member_key, (n,), 0, self.model.members)  # each branch follows one member

        def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Any]:
            obs, alive = carry
            if explorer:
                action = self._least_known(params, scales, obs)
            else:
                action = self.act(strays, obs, {}, jnp.zeros(n, bool), key, jnp.ones(n))[0]
            told = self.model.predict(params, scales, obs, action)
            apart = world_model.disagreement(told)
            following = world_model.step_of(told, scales, obs, member)
            reward = following.reward + (self.config.bonus * scales.reward_unit * apart if explorer else 0.0)
            discount = self.config.gamma * (1.0 - following.done.astype(jnp.float32))
            # If an episode continues where no real action was ever taken, the model missed its end: it learns rare ends last.
            known = following.done | scales.inside(following.obs)
            valid = alive & known & jnp.isfinite(reward)
            row = Transitions(obs, action, reward.astype(jnp.float32), discount, following.obs)
            # A branch that has ended keeps its state, so that masked values cannot diverge.
            obs = jnp.where(valid[:, None], following.obs, obs)
            return (obs, valid & ~following.done), (row, valid, apart)

        keys = jax.random.split(act_key, self.config.horizon)
        _, (rows, valid, apart) = jax.lax.scan(step, (obs, jnp.ones(n, bool)), keys)
        mean = jnp.sum(jnp.where(valid, apart, 0.0)) / jnp.maximum(valid.sum(), 1)
        return Imagined(rows, valid, mean)

    def _begin(
        self, params: Params, scales: Scales, actor: ActorState, candidates: Transitions, key: Array, explorer: bool
    ) -> Array:
        """Sample starts from the candidates in proportion to their weight, without replacement (Gumbel trick)."""
        count = candidates.obs.shape[0]
        if explorer:
            weight = world_model.disagreement(self.model.predict(params, scales, candidates.obs, candidates.action))
        elif self.config.sweeping:
            weight = jnp.abs(self._td(actor, scales, candidates)) ** self.config.alpha
        else:
            weight = jnp.ones(count)
        gumbel = jax.random.gumbel(key, (count,))
        _, chosen = jax.lax.top_k(jnp.log(weight + 1e-6) + gumbel, min(self.config.starts, count))
        return candidates.obs[chosen]

    def _td(self, actor: ActorState, scales: Scales, rows: Transitions) -> Array:
        """Errors of real rows under the acting weights only: planners have no target network."""

        def q(obs: Array) -> Array:
            return self.net.q(actor.params, self.dqn.seen(actor.obs_mean, actor.obs_scale, obs))

        q_t = q(rows.next_obs)
        reward = self.dqn.normalised(rows.reward, scales.reward_unit)
        return q_learning.td_error(q(rows.obs), rows.action, reward, rows.discount, q_t, q_t)

    def _least_known(self, params: Params, scales: Scales, obs: Array) -> Array:
        """The action with the largest disagreement between members, at each of obs [N, n]."""
        every = jnp.arange(self.model.actions)
        grid = jnp.broadcast_to(every[:, None], (self.model.actions, obs.shape[0]))
        told = self.model.predict(params, scales, jnp.broadcast_to(obs, (*grid.shape, obs.shape[-1])), grid)
        action = jnp.argmax(world_model.disagreement(told), axis=0)
        return action.astype(self.task.spec.action.dtype)


def _unit(moments: Moments) -> tuple[Array, Array]:
    return moments.mean, statistics.std(moments) + 1e-6
