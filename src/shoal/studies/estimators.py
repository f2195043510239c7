"""Bias and spread of a trained policy's n-step returns, against returns to the end of the episode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.acting.player import Broke, play
from shoal.core.errors import RunFailed
from shoal.experiment import resolve
from shoal.launch.compose import make_algorithm
from shoal.launch.saved import state_of, under
from shoal.run.checkpoints import Checkpoints
from shoal.run.folder import RunFolder


class Estimate(NamedTuple):
    bias: float  # of the n-step return of the first state, against the mean return to the end
    spread: float  # its standard deviation over episodes that begin in the same state


class Played(NamedTuple):
    """Episodes in groups of `each` that share their first state: rewards, values of all visited states, and whether the
    episode terminated."""

    rewards: list[np.ndarray]  # [T] each
    values: list[np.ndarray]  # [T + 1] each
    terminated: list[bool]
    each: int


def estimates(run: Path, lengths: Sequence[int], states: int, each: int, seed: int = 0) -> dict[int, Estimate]:
    """Estimates of n-step returns for each n in `lengths`, with a run's policy and values and sampled actions."""
    played, gamma = play_with_values(run, states, each, seed)
    return compare_returns(played, gamma, lengths)


def compare_returns(played: Played, gamma: float, lengths: Sequence[int]) -> dict[int, Estimate]:
    """Compare n-step returns of the first state, `sum_k gamma^k r_k + gamma^n V(s_n)`, with returns to the end."""
    whole = np.array(
        [
            n_step(r, v, ended, gamma, len(r))
            for r, v, ended in zip(played.rewards, played.values, played.terminated, strict=True)
        ]
    )
    found = {}
    for n in lengths:
        short = np.array(
            [
                n_step(r, v, ended, gamma, n)
                for r, v, ended in zip(played.rewards, played.values, played.terminated, strict=True)
            ]
        )
        # Within a state: the difference between states is no error of an estimator.
        within = short.reshape(-1, played.each).var(axis=1, ddof=1)
        found[n] = Estimate(float(short.mean() - whole.mean()), float(np.sqrt(within.mean())))
    return found


def n_step(rewards: np.ndarray, values: np.ndarray, terminated: bool, gamma: float, n: int) -> float:
    """The n-step return of the first state. If the episode ends earlier, no value follows its end, unless it was truncated."""
    n = min(n, len(rewards))
    ended = terminated and n == len(rewards)
    powers = gamma ** np.arange(n + 1)
    return float(rewards[:n] @ powers[:n] + (0.0 if ended else powers[n] * values[n]))


def play_with_values(run: Path, states: int, each: int, seed: int) -> tuple[Played, float]:
    """Episodes in the run's own environment, `each` from the same state, and the run's gamma. Rewards are scaled as in
    training."""
    folder = RunFolder.open(run)
    stored = folder.read_config()
    named = stored.pop("env")
    plan = resolve(named, {k: v for k, v in stored.items() if k not in ("machine", "spec")})
    algorithm: Any = make_algorithm(plan)
    state = state_of(algorithm, under(Checkpoints(folder.checkpoints).load("last").arrays, "state/"))
    actor = algorithm.actor_state(state)
    episodes = states * each
    kept = _Kept(episodes)
    todo = [(i, 0) for i in range(episodes)]
    starts = [seed * 100_003 + i // each for i in range(episodes)]
    for event in play(
        algorithm,
        actor,
        plan.source.single,
        todo,
        episodes,
        sample=True,
        seed=seed,
        start_of=lambda episode, attempt: starts[episode],
        recorder=kept,
    ):
        if isinstance(event, Broke):
            raise RunFailed(f"{plan.source.name}: {event.detail.strip().splitlines()[-1]}", event.detail)
    values = [_values(algorithm, state, actor, np.stack(states)) for states in kept.seen]
    learnt = [np.array([_learnt(reward, plan.algo) for reward in rewards]) for rewards in kept.rewards]
    return Played(learnt, values, kept.terminated, each), float(plan.algo.gamma)


class _Kept:
    """Records the rewards and observations of episodes."""

    def __init__(self, episodes: int) -> None:
        self.rewards: list[list[float]] = [[] for _ in range(episodes)]
        self.seen: list[list[np.ndarray]] = [[] for _ in range(episodes)]
        self.terminated = [False] * episodes

    def begin(self, episode: int, obs: np.ndarray) -> None:
        self.seen[episode] = [obs.copy()]

    def step(self, episode: int, obs: np.ndarray, reward: float, terminated: bool) -> None:
        self.rewards[episode].append(reward)
        self.seen[episode].append(obs.copy())
        self.terminated[episode] = terminated


def _learnt(reward: float, config: Any) -> float:
    """A reward as training sees it."""
    signed = float(np.sign(reward)) if config.reward_clip == "sign" else reward
    return signed * float(config.reward_scale)


def _values(algorithm: Any, state: Any, actor: Any, states: np.ndarray) -> np.ndarray:
    """V of each state [T + 1], padded to powers of two to limit compilations."""
    size = 1 << (len(states) - 1).bit_length()
    padded = np.concatenate([states, np.repeat(states[-1:], size - len(states), 0)])[:, None]
    first = np.zeros((size, 1), bool)
    value = algorithm.net.value(state.params, algorithm.seen(actor, padded), algorithm.initial_carry(1), first)
    return np.asarray(value)[: len(states), 0]
