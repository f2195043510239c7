"""Algorithms, one file each: the loss and how to act, as pure functions of (state, batch).

May import: nets, replay, ops, core. To add one: its file, one line in `ALGOS`, its test. Looking for the loop that calls
these? `roles`. For the contract? `core.algorithm`. For the maths? `ops`.
"""

from __future__ import annotations

from shoal.algos.a2c import A2C
from shoal.algos.ddpg import DDPG
from shoal.algos.dqn import DQN
from shoal.algos.dyna_q import DynaQ
from shoal.algos.ppo import PPO
from shoal.algos.reinforce import Reinforce
from shoal.algos.sac import SAC
from shoal.algos.td3 import TD3
from shoal.core.algorithm import Algorithm

ALGOS: dict[str, type[Algorithm]] = {
    "a2c": A2C,
    "ddpg": DDPG,
    "dqn": DQN,
    "dyna_q": DynaQ,
    "ppo": PPO,
    "reinforce": Reinforce,
    "sac": SAC,
    "td3": TD3,
}
