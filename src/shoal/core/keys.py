"""Random keys by path: (seed, purpose, numbers...) names one key, on every runtime and in every process."""

from __future__ import annotations

import numpy as np

# The first word of a path: no two uses share a key.
ACTING, LEARNING, INIT, ENVS, EVALUATION, STARTS, REPLAYING, GOSSIP, RANDOM_ACTIONS, PLANNING, CHECKING = range(11)
_POOL = 4  # words that NumPy's SeedSequence holds


def key_data(seed: int, *path: int) -> np.ndarray:
    """The raw data of a JAX key, made on the host to avoid a device call between two unrolls."""
    return np.random.SeedSequence(entropy=seed, spawn_key=path).generate_state(2)


def episode_seed(seed: int, episode: int, attempt: int = 0) -> int:
    """The environment's seed for one episode of an evaluation; a broken episode is played again as the next attempt."""
    path = (episode, attempt) if attempt else (episode,)
    return int(key_data(seed, EVALUATION, *path)[0] >> 1)


def resumed_at(start: int) -> tuple[int, ...]:
    """The suffix of a key path in a run resumed from `start`, when the number of keys drawn before is unknown."""
    return (start,) if start else ()


def successor_of(deaths: int) -> tuple[int, ...]:
    """The suffix of a key path in a role whose place `deaths` others had before it: it draws other numbers than they did."""
    return (0, deaths) if deaths else ()


def keys_in_a_row(seed: int, *path: int, first: int, count: int) -> np.ndarray:
    """`key_data(seed, *path, at)` for `count` consecutive values of `at` from `first`: [count, 2].

    Computes NumPy's hash for all of them at once: one by one, making the keys takes longer than a small net's updates.
    """
    last = np.arange(first, first + count, dtype=np.uint32)
    words = [np.full(count, word, np.uint32) for word in _words(seed, path)] + [last]
    constant = 0x43B0D7E5

    def hashed(values: np.ndarray) -> np.ndarray:
        nonlocal constant
        values = values ^ np.uint32(constant)
        constant = constant * 0x931E8875 & 0xFFFFFFFF
        values = values * np.uint32(constant)
        return values ^ values >> 16

    def mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        both: np.ndarray = np.multiply(x, np.uint32(0xCA01F9DD)) - np.multiply(y, np.uint32(0x4973F715))
        folded: np.ndarray = both ^ both >> 16
        return folded

    pool = [hashed(word) for word in words[:_POOL]]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in words[_POOL:]:
        pool = [mixed(held, hashed(word)) for held in pool]
    out, constant = [], 0x8B51F9DD
    for held in pool[:2]:
        held = held ^ np.uint32(constant)
        constant = constant * 0x58F38DED & 0xFFFFFFFF
        held = held * np.uint32(constant)
        out.append(held ^ held >> 16)
    return np.stack(out, axis=1)


def _words(seed: int, path: tuple[int, ...]) -> list[int]:
    """The words that SeedSequence hashes: the seed in 32-bit words, padded to the pool's size, then the path's words."""

    def split(value: int) -> list[int]:
        return [value & 0xFFFFFFFF, *(split(value >> 32) if value >> 32 else [])]

    words = split(seed)
    words += [0] * (_POOL - len(words))
    return words + [word for value in path for word in split(value)]
