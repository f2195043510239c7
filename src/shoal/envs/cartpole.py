"""CartPole-v1 in JAX: the constants, the order of Euler's method and the rewards are Gymnasium 1.4's.

Barto, Sutton and Anderson (1983), Neuronlike adaptive elements that can solve difficult learning control problems.
Differs from Gymnasium only in precision: float32 here, float64 inside Gymnasium.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.spec import ActionSpec, Categorical, EnvSpec, ObsSpec
from shoal.core.trajectory import Array

GRAVITY = 9.8
MASS_POLE = 0.1
TOTAL_MASS = 1.0 + MASS_POLE
LENGTH = 0.5  # half of the pole's length
POLE_MASS_LENGTH = MASS_POLE * LENGTH
FORCE = 10.0
TAU = 0.02  # seconds per step
ANGLE_LIMIT = 12 * 2 * math.pi / 360
PLACE_LIMIT = 2.4


class CartPole(NamedTuple):
    """The state is the observation: cart position and velocity, pole angle and angular velocity."""

    max_steps: int = 500

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("CartPole-v1", ObsSpec((4,)), ActionSpec((Categorical((2,)),), scalar=True))

    def reset(self, key: Array) -> tuple[Array, Array]:
        state = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return state, state

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        x, x_dot, theta, theta_dot = state
        force = jnp.where(action == 1, FORCE, -FORCE)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        temp = (force + POLE_MASS_LENGTH * jnp.square(theta_dot) * sin) / TOTAL_MASS
        theta_acc = (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - MASS_POLE * jnp.square(cos) / TOTAL_MASS))
        x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS
        x, x_dot = x + TAU * x_dot, x_dot + TAU * x_acc
        theta, theta_dot = theta + TAU * theta_dot, theta_dot + TAU * theta_acc
        after = jnp.stack([x, x_dot, theta, theta_dot])
        terminated = (jnp.abs(x) > PLACE_LIMIT) | (jnp.abs(theta) > ANGLE_LIMIT)
        return after, after, jnp.float32(1.0), terminated
