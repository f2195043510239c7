"""Conversion of a learner's state to exchanged vectors and back: weights, observation statistics, optimiser moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core.algorithm import LearnerState, Moments
from shoal.core.blueprint import named_leaves, restore_leaves
from shoal.core.weights import layout_of, leaf_names, to_vector
from shoal.federation.normaliser import Counts

COUNTED = 1_000_000  # updates from which a count no longer changes what an optimiser computes


class StateVectors:
    """Converter for the states of one algorithm and net. `moments`: whether optimiser moments are exchanged."""

    def __init__(self, like: LearnerState, *, moments: bool = False) -> None:
        self.like = like
        self.layout = layout_of(like.params)
        self._names = leaf_names(like.params)
        every = leaf_names(like)
        # Parts of the state with the shape of the params: optimiser moments, and target networks of all or some params.
        self.moments = self._shaped_like_params(every, "moments/") if moments else ()
        self._targets = tuple(name for name in self._names if f"extra/target/{name}" in set(every))
        self.observed = 0 if like.obs is None else int(np.prod(like.obs.mean.shape))

    @property
    def architecture(self) -> str:
        """Fingerprint of the weights' layout."""
        return self.layout.fingerprint

    @property
    def squares(self) -> frozenset[str]:
        """Names of the moments that are never negative."""
        return frozenset(name for name in self.moments if name.rpartition("/")[2] == "nu")

    def _shaped_like_params(self, every: list[str], prefix: str) -> tuple[str, ...]:
        first = self._names[0]
        heads = [name.removesuffix(f"/{first}") for name in every if name.endswith(f"/{first}")]
        there = set(every)
        return tuple(
            head.removeprefix(prefix)
            for head in heads
            if head.startswith(prefix) and all(f"{head}/{name}" in there for name in self._names)
        )

    def moments_of(self, state: LearnerState) -> dict[str, np.ndarray]:
        """The exchanged moments: {name: [P]}."""
        leaves = named_leaves(state) if self.moments else {}
        return {group: to_vector([leaves[f"moments/{group}/{name}"] for name in self._names]) for group in self.moments}

    def counts_of(self, state: LearnerState) -> Counts | None:
        """Observation statistics, if the run keeps any."""
        if state.obs is None:
            return None
        mean, m2 = (np.asarray(part, np.float64).reshape(-1) for part in state.obs[1:])
        return Counts(float(state.obs.count), mean, np.maximum(m2, 0.0))

    def statistics(self, counts: Counts) -> Moments:
        """Counts in the format of the run."""
        assert self.like.obs is not None
        shape = self.like.obs.mean.shape
        mean, m2 = (part.astype(np.float32).reshape(shape) for part in counts[1:])
        return Moments(np.float32(counts.samples), mean, m2)

    def moment_leaves(self, moments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Leaves of the state by name, for received moments."""
        found: dict[str, np.ndarray] = {}
        for group, vector in moments.items():
            found |= self._leaves(f"moments/{group}", vector)
        return found

    def counters(self, updates: int) -> dict[str, np.ndarray]:
        """Leaves of the state by name: the optimiser's counts of updates, if moments are exchanged and any were made."""
        if not (self.moments and updates):
            return {}
        names = (name for name in leaf_names(self.like) if name.startswith("moments/") and name.endswith("/count"))
        return {name: np.full((), min(updates, COUNTED), np.int32) for name in names}

    def leaves(
        self, weights: np.ndarray, counts: Counts | None, moments: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Leaves of a state with these weights; target networks are equal to them. It counts as trained: its policy acts."""
        found = {**self._leaves("params", weights), "step": np.ones((), np.int32)}
        found |= {f"extra/target/{name}": found[f"params/{name}"] for name in self._targets}
        if counts is not None and self.like.obs is not None:
            found |= {f"obs/{name}": np.asarray(part) for name, part in self.statistics(counts)._asdict().items()}
        return found | self.moment_leaves(moments)

    def state(
        self, weights: np.ndarray, counts: Counts | None, moments: Mapping[str, np.ndarray], progress: float
    ) -> LearnerState:
        """A learner's state with these weights. `progress`: share of the budget, by which its sampled actions explore."""
        own = {**self.leaves(weights, counts, moments), "progress": np.float32(progress)}
        named: dict[str, Any] = {**named_leaves(self.like), **own}
        return LearnerState(*restore_leaves(self.like, named))

    def vector(self, state: LearnerState) -> np.ndarray:
        """The weights as a vector [P]."""
        return to_vector(state.params)

    def _leaves(self, prefix: str, vector: np.ndarray) -> dict[str, np.ndarray]:
        tree = self.layout.tree(np.array(vector, np.float32))  # a copy, which JAX may keep
        return {f"{prefix}/{name}": leaf for name, leaf in named_leaves(tree).items()}
