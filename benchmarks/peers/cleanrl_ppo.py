"""PPO as CleanRL's `ppo.py` has it (a script, not a package): its net, its loop and its settings, written again here.

Huang et al. 2022, "CleanRL", https://jmlr.org/papers/v23/21-1342.html. 4 environments of 128 steps, 4 minibatches, 4 epochs.
Left out: its trackers and its command line.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from measure import ENV, EPISODES, Measure, arguments
from torch import nn
from torch.distributions import Categorical

ENVS, STEPS, PARTS, EPOCHS = 4, 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM, RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 2.5e-4


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.constant_(made.bias, 0.0)
    return made


def net(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain))


class Agent(nn.Module):
    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.critic, self.actor = net(inputs, 1, 1.0), net(inputs, actions, 0.01)

    def forward(self, obs: Any, action: Any = None) -> Any:
        policy = Categorical(logits=self.actor(obs))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.critic(obs).flatten()


def advantages(rewards: Any, ends: Any, values: Any) -> Any:
    """GAE over [STEPS] rows; `ends` and `values` have one row more. An end is an end, also where time was up."""
    found, last = torch.zeros_like(rewards), 0.0
    for t in reversed(range(STEPS)):
        goes_on = 1.0 - ends[t + 1]
        delta = rewards[t] + GAMMA * values[t + 1] * goes_on - values[t]
        found[t] = last = delta + GAMMA * LAMBDA * goes_on * last
    return found


def main() -> None:
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  minibatches are shuffled by it, as there
    mode = gym.vector.AutoresetMode.SAME_STEP
    make = lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(ENV))  # noqa: E731
    envs = gym.vector.SyncVectorEnv([make] * ENVS, autoreset_mode=mode)
    agent = Agent(int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n))
    optimiser = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)
    shape = (STEPS + 1, ENVS)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions, log_probs, rewards, ends, values = (torch.zeros(shape) for _ in range(5))
    returns: deque[float] = deque(maxlen=EPISODES)
    obs[0] = torch.from_numpy(envs.reset(seed=args.seed)[0])
    steps, complete = 0, False
    while not complete:
        for t in range(STEPS):
            with torch.no_grad():
                actions[t], log_probs[t], _, values[t] = agent(obs[t])
            seen, reward, terminated, truncated, info = envs.step(actions[t].long().numpy())
            obs[t + 1], rewards[t] = torch.from_numpy(seen), torch.from_numpy(reward)
            ends[t + 1] = torch.from_numpy(np.logical_or(terminated, truncated))
            final = info.get("final_info", {})
            returns.extend(float(r) for r in final["episode"]["r"][final["_episode"]]) if "episode" in final else None
        steps += STEPS * ENVS
        with torch.no_grad():
            values[STEPS] = agent(obs[STEPS])[3]
        advantage = advantages(rewards[:STEPS], ends, values)
        flat = [x[:STEPS].reshape(STEPS * ENVS, *x.shape[2:]) for x in (obs, actions, log_probs, values, advantage)]
        order, size = np.arange(STEPS * ENVS), STEPS * ENVS // PARTS
        for _ in range(EPOCHS):
            np.random.shuffle(order)  # noqa: NPY002
            for start in range(0, len(order), size):
                o, a, mu, v, adv = (x[order[start : start + size]] for x in flat)
                _, log_pi, entropy, value = agent(o, a)
                ratio, target = (log_pi - mu).exp(), adv + v
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                policy = torch.max(-adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                near = v + (value - v).clamp(-CLIP, CLIP)
                error = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2).mean()
                optimiser.zero_grad()
                (policy - ENTROPY * entropy.mean() + VALUE * error).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), NORM)
                optimiser.step()
        obs[0], ends[0] = obs[STEPS], ends[STEPS]
        complete = measure.iteration(steps, list(returns))
    settings = {"num_envs": ENVS, "num_steps": STEPS, "num_minibatches": PARTS, "update_epochs": EPOCHS}
    measure.report("torch", settings, STEPS * ENVS // PARTS, STEPS * ENVS / PARTS / EPOCHS, found="ppo.py, as of 2024")


if __name__ == "__main__":
    main()
