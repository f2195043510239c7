"""PPO on Pong in the manner of CleanRL's `ppo_atari_envpool.py`, with the settings that EnvPool's examples give for it.

CleanRL is a collection of scripts and not a package, so this is one more of its kind, written for this benchmark: one process,
one EnvPool whose threads fill the cores, PyTorch on as many threads, acting and learning in turn. The net is that of A3C, as in
all rows of this comparison; the settings are those of "solve Pong in 5 minutes" (16 environments, 128 steps, 3 epochs of 8
minibatches, clip 0.2).
"""

from __future__ import annotations

import importlib
import sys
from collections import deque
from types import ModuleType
from typing import Any

import numpy as np
import torch
from measure import Measure, arguments
from torch import nn

# Importing EnvPool registers every family, and one of them wants assets that are not installed here: Atari's alone is enough.
sys.modules["envpool.entry"] = ModuleType("envpool.entry")
envpool = importlib.import_module("envpool")
importlib.import_module("envpool.atari.registration")

ENV = "Pong-v5"
SETTINGS: dict[str, Any] = {
    "num_envs": 16,
    "num_steps": 128,
    "update_epochs": 3,
    "num_minibatches": 8,
    "learning_rate": 2.5e-4,
    "total_timesteps": 10_000_000,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_coef": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "threads": 2,
}


def layer(made: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    def __init__(self, actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            layer(nn.Conv2d(4, 16, 8, stride=4)),
            nn.ReLU(),
            layer(nn.Conv2d(16, 32, 4, stride=2)),
            nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(32 * 9 * 9, 256)),
            nn.ReLU(),
        )
        self.actor, self.critic = layer(nn.Linear(256, actions), 0.01), layer(nn.Linear(256, 1), 1.0)

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        hidden = self.trunk(obs / 255.0)
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden).flatten()


class Collector:
    """Unrolls of the pool, and the returns of episodes that ended, by rewards as the game gives them."""

    def __init__(self, seed: int) -> None:
        count, steps = SETTINGS["num_envs"], SETTINGS["num_steps"]
        self.envs = envpool.make(
            ENV, env_type="gymnasium", num_envs=count, seed=seed, num_threads=SETTINGS["threads"], episodic_life=True
        )
        shape = self.envs.observation_space.shape
        self.obs = torch.zeros((steps, count, *shape))
        self.action = torch.zeros((steps, count), dtype=torch.int64)
        self.log_prob, self.reward, self.done, self.value = (torch.zeros((steps, count)) for _ in range(4))
        self.next_obs, self.next_done = torch.as_tensor(self.envs.reset()[0], dtype=torch.float32), torch.zeros(count)
        self.running, self.returns = np.zeros(count), deque[float](maxlen=100)

    @torch.no_grad()
    def collect(self, agent: Agent) -> None:
        for t in range(SETTINGS["num_steps"]):
            self.obs[t], self.done[t] = self.next_obs, self.next_done
            policy, self.value[t] = agent(self.next_obs)
            action = policy.sample()
            self.action[t], self.log_prob[t] = action, policy.log_prob(action)
            obs, reward, terminated, truncated, _ = self.envs.step(action.numpy().astype(np.int32))
            ended = terminated | truncated
            self.reward[t] = torch.as_tensor(np.sign(reward))
            self.running += reward
            self.returns.extend(self.running[ended])
            self.running[ended] = 0.0
            self.next_obs = torch.as_tensor(obs, dtype=torch.float32)
            self.next_done = torch.as_tensor(ended, dtype=torch.float32)

    @torch.no_grad()
    def advantages(self, agent: Agent) -> torch.Tensor:
        found, last = torch.zeros_like(self.reward), torch.zeros(SETTINGS["num_envs"])
        following, goes_on = agent(self.next_obs)[1], 1.0 - self.next_done
        for t in reversed(range(SETTINGS["num_steps"])):
            delta = self.reward[t] + SETTINGS["gamma"] * following * goes_on - self.value[t]
            last = delta + SETTINGS["gamma"] * SETTINGS["gae_lambda"] * goes_on * last
            found[t], following, goes_on = last, self.value[t], 1.0 - self.done[t]
        return found


def learn(agent: Agent, optimiser: torch.optim.Optimizer, seen: Collector) -> None:
    advantage = seen.advantages(agent)
    target = (advantage + seen.value).flatten()
    obs, action, log_prob, value = (a.flatten(0, 1) for a in (seen.obs, seen.action, seen.log_prob, seen.value))
    advantage, clip = advantage.flatten(), SETTINGS["clip_coef"]
    for _ in range(SETTINGS["update_epochs"]):
        for some in torch.randperm(len(obs)).chunk(SETTINGS["num_minibatches"]):
            policy, new = agent(obs[some])
            ratio = (policy.log_prob(action[some]) - log_prob[some]).exp()
            a = advantage[some]
            a = (a - a.mean()) / (a.std() + 1e-8)
            policy_loss = torch.max(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip)).mean()
            held = value[some] + (new - value[some]).clamp(-clip, clip)
            value_loss = 0.5 * torch.max((new - target[some]) ** 2, (held - target[some]) ** 2).mean()
            loss = policy_loss + SETTINGS["vf_coef"] * value_loss - SETTINGS["ent_coef"] * policy.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), SETTINGS["max_grad_norm"])
            optimiser.step()


def main() -> None:
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return, ENV)
    torch.manual_seed(args.seed)
    torch.set_num_threads(SETTINGS["threads"])
    seen = Collector(args.seed)
    agent = Agent(int(seen.envs.action_space.n))
    optimiser = torch.optim.Adam(agent.parameters(), lr=SETTINGS["learning_rate"], eps=1e-5)
    steps, each = 0, SETTINGS["num_envs"] * SETTINGS["num_steps"]
    while True:
        optimiser.param_groups[0]["lr"] = SETTINGS["learning_rate"] * (1.0 - steps / SETTINGS["total_timesteps"])
        seen.collect(agent)
        learn(agent, optimiser, seen)
        steps += each
        if measure.iteration(steps, list(seen.returns)):
            break
    size = each // SETTINGS["num_minibatches"]
    measure.report("torch", SETTINGS, size, size / SETTINGS["update_epochs"], found="ppo_atari_envpool.py, as of 2024")


if __name__ == "__main__":
    main()
