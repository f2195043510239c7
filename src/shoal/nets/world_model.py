"""A learnt model of the environment: an ensemble of nets with different initial weights.

Each member is an MLP (s, one-hot a) -> (change of s, reward, logit of the end). Everything is in normalised units, so that one
learning rate serves every environment and an error of 1 means: no better than predicting the mean. Disagreement between
members indicates too little data.

Params: those of one member (`{"trunk": {"hidden0", ...}, "head"}`) with a first axis of members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Params
from shoal.core.trajectory import Array
from shoal.nets.initial import realise
from shoal.nets.mlp import dense, mlp, plan_dense, plan_mlp

RAREST = 0.02  # ends rarer than this share weigh less than all the rest
HEAD_GAIN = 0.01  # makes the first prediction: nothing changes


class Scales(NamedTuple):
    """Location and spread of real experience: the units of the model."""

    obs_mean: Array  # [n]
    obs_std: Array
    change_mean: Array  # [n]
    change_std: Array
    reward_mean: Array  # []
    reward_std: Array
    reward_unit: Array  # [] the reward that counts 1 in the action values
    obs_low: Array  # [n] the smallest and largest value of each entry in states where an action was taken
    obs_high: Array

    def inside(self, obs: Array) -> Array:
        """[...] whether obs [..., n] lie in the box of observations seen so far."""
        within: Array = ((obs >= self.obs_low) & (obs <= self.obs_high)).all(-1)
        return within


class Prediction(NamedTuple):
    """In normalised units; K members."""

    change: Array  # [K, ..., n]
    reward: Array  # [K, ...]
    logit: Array  # [K, ...] of the episode's end


class Step(NamedTuple):
    """In the environment's own units."""

    obs: Array  # [..., n] the next observation
    reward: Array  # [...]
    done: Array  # [...] bool


@dataclass(frozen=True)
class WorldModel:
    """An ensemble of K nets. Hashable: two equal ones compile once."""

    inputs: int  # n, the width of an observation
    actions: int
    hidden: tuple[int, ...]
    members: int  # K

    def init(self, key: Array) -> Params:
        plan = {
            "trunk": plan_mlp(self.inputs + self.actions, self.hidden),
            "head": plan_dense(self.hidden[-1], self.inputs + 2, HEAD_GAIN),
        }
        params: Params = jax.vmap(lambda k: realise(plan, k))(jax.random.split(key, self.members))
        return params

    def predict(self, params: Params, scales: Scales, obs: Array, action: Array) -> Prediction:
        """Every member's prediction for obs [..., n] and action [...]."""
        return self._all(params, self._seen(scales, obs, action), member_inputs=False)

    def predict_own(self, params: Params, scales: Scales, obs: Array, action: Array) -> Prediction:
        """Each member's prediction for its own rows: obs [K, ..., n], action [K, ...]."""
        return self._all(params, self._seen(scales, obs, action), member_inputs=True)

    def _seen(self, scales: Scales, obs: Array, action: Array) -> Array:
        assert obs.shape[-1] == self.inputs and obs.shape[:-1] == action.shape, (obs.shape, action.shape)
        normal = jnp.clip((obs - scales.obs_mean) / scales.obs_std, -10.0, 10.0)
        return jnp.concatenate([normal, jax.nn.one_hot(action.astype(jnp.int32), self.actions)], -1)

    def _all(self, params: Params, x: Array, member_inputs: bool) -> Prediction:
        def one(own: Params, x: Array) -> Array:
            return dense(own["head"], mlp(own["trunk"], x, len(self.hidden), "relu"))

        out = jax.vmap(one, in_axes=(0, 0 if member_inputs else None))(params, x)
        return Prediction(out[..., : self.inputs], out[..., -2], out[..., -1])


def step_of(prediction: Prediction, scales: Scales, obs: Array, member: Array) -> Step:
    """The step from obs [N, n], each row as predicted by its `member` [N]. Below even odds, the episode continues."""

    def own(x: Array) -> Array:  # [K, N, ...] -> [N, ...]
        return x[member, jnp.arange(x.shape[1])]

    change = own(prediction.change) * scales.change_std + scales.change_mean
    reward = own(prediction.reward) * scales.reward_std + scales.reward_mean
    return Step(obs + change, reward, own(prediction.logit) > 0.0)


def disagreement(prediction: Prediction) -> Array:
    """[...] disagreement of the members about the next state: their standard deviation, averaged over its entries."""
    return jnp.std(prediction.change, axis=0).mean(-1)


class ModelErrors(NamedTuple):
    """Means over rows and members. For state and reward, predicting the mean would give 1."""

    state: Array  # squared error of the change
    reward: Array  # squared error
    done: Array  # binary cross-entropy in bits, balanced between the two classes: 1 is a coin toss

    @property
    def total(self) -> Array:
        return self.state + self.reward + self.done


def errors(
    prediction: Prediction, scales: Scales, obs: Array, next_obs: Array, reward: Array, done: Array
) -> ModelErrors:
    """Errors of predictions [K, ...] against real transitions: MSE, MSE, BCE."""
    change = (next_obs - obs - scales.change_mean) / scales.change_std
    # Clipped, so that a jump once in a thousand steps does not outweigh all the others.
    target = jnp.clip(change, -10.0, 10.0)
    earned = jnp.clip((reward - scales.reward_mean) / scales.reward_std, -10.0, 10.0)
    ended = jnp.asarray(done, jnp.float32)
    # Ends are rare, and a model that never predicts one is useless: both classes weigh the same.
    share = jnp.mean(ended)
    weight = ended * 0.5 / jnp.maximum(share, RAREST) + (1.0 - ended) * 0.5 / jnp.maximum(1.0 - share, RAREST)
    cross = weight * (jax.nn.softplus(prediction.logit) - ended * prediction.logit) / jnp.log(2.0)
    return ModelErrors(
        jnp.mean(jnp.square(prediction.change - target)),
        jnp.mean(jnp.square(prediction.reward - earned)),
        jnp.mean(cross),
    )
