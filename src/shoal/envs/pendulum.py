"""Pendulum-v1 in JAX: the constants, the order of Euler's method and the rewards are Gymnasium 1.4's, in float32."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.spec import ActionSpec, Continuous, EnvSpec, ObsSpec
from shoal.core.trajectory import Array

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
DT = 0.05
GRAVITY = 10.0
MASS = 1.0
LENGTH = 1.0


class Pendulum(NamedTuple):
    """The state is (angle, angular velocity); the observation cos, sin and the velocity. It never terminates."""

    max_steps: int = 200

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("Pendulum-v1", ObsSpec((3,)), ActionSpec((Continuous((-MAX_TORQUE,), (MAX_TORQUE,)),)))

    def reset(self, key: Array) -> tuple[Array, Array]:
        high = jnp.array([math.pi, 1.0], jnp.float32)
        state = jax.random.uniform(key, (2,), jnp.float32, -high, high)
        return state, _observe(state)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        theta, speed = state
        torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
        angle = ((theta + math.pi) % (2 * math.pi)) - math.pi
        cost = jnp.square(angle) + 0.1 * jnp.square(speed) + 0.001 * jnp.square(torque)
        speed = speed + (3 * GRAVITY / (2 * LENGTH) * jnp.sin(theta) + 3.0 / (MASS * LENGTH**2) * torque) * DT
        speed = jnp.clip(speed, -MAX_SPEED, MAX_SPEED)
        after = jnp.stack([theta + speed * DT, speed])
        return after, _observe(after), -cost, jnp.bool_(False)


def _observe(state: Array) -> Array:
    return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])
