"""The contract between an algorithm and everything else: pure functions of (state, batch).

An algorithm never knows its topology. `gradients` only computes gradients, so that a learner may apply them, a group may
average them and a shared table may add them. Implemented in `algos`, called by `roles`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from shoal.core.spec import EnvSpec
from shoal.core.trajectory import Array, Trajectory

Params = dict[str, Any]
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


class Moments(NamedTuple):
    """Running count, mean and sum of squared deviations; merged by Chan's formula, never averaged."""

    count: Array  # []
    mean: Array  # [...]
    m2: Array  # [...]


class RewardScale(NamedTuple):
    """Statistics of discounted returns, and each environment's return so far."""

    moments: Moments
    returns: Array  # [B]


class LearnerState(NamedTuple):
    """State that learning carries from update to update. Every leaf is an array, so that a checkpoint is a list of arrays."""

    params: Params
    moments: Any  # of the optimiser
    obs: Moments | None  # observation statistics, None if observations are not normalised
    reward: RewardScale | None
    step: Array  # [] int32: gradients applied
    progress: Array  # [] float32: spent share of the budget, from 0 to 1; schedules read it
    extra: dict[str, Array]  # state specific to an algorithm: target networks, temperatures


class ActorState(NamedTuple):
    """The state that acting needs, sent to actors as one float32 vector."""

    params: Params  # of the policy; those of the value function stay with the learner
    obs_mean: Array | None
    obs_scale: Array | None
    explore: dict[str, Array] = {}  # noqa: RUF012  # [] each: the algorithm's own exploration, logged as explore/<name>


class Feedback(NamedTuple):
    """Side results of computing a gradient."""

    metrics: dict[str, Array]  # scalars
    stop: Array  # [] bool: no further minibatch of this update should be applied
    td: Array | None = None  # [N] errors of rows from a replay: their next priorities
    moved: Array | None = None  # [groups] bool: parameter groups that this gradient moves; None means all


class ParamGroup(NamedTuple):
    """Params under one top-level name that have their own learning rate and may be left out by some gradients."""

    name: str
    factor: float = 1.0  # of the learning rate


class Unrolls(NamedTuple):
    """Experience in unrolls, used once. `fresh`: every unroll begins with a reset, so that no step is lost to autoreset."""

    length: int
    fresh: bool = False


class Replay(NamedTuple):
    """Experience in a replay: `prepare` returns rows to store, and minibatches are drawn from all stored rows."""

    length: int  # of an unroll
    batch: int  # rows per gradient
    every: int  # environment steps per `repeats` gradients
    capacity: int  # rows that are stored, over all actors
    warmup: int  # rows before the first gradient
    repeats: int = 1
    n_step: int = 1
    kind: Literal["uniform", "prioritized"] = "uniform"
    sampler: Literal["seeded", "cpprb"] = "seeded"  # implementation of the priorities
    alpha: float = 0.6  # 0 draws uniformly, 1 in proportion to the error
    beta: float = 0.4  # importance-sampling correction at the start; 1 at the end
    replacement: bool = True  # a row may occur twice in one minibatch
    save_limit: float = 1.0  # GiB: a replay that may grow larger is not part of checkpoints
    fresh: bool = False
    sequence: int = 1  # steps of a row: more than one for recurrent nets


class Kept(NamedTuple):
    """Rows for a replay, from `prepare`. Every array begins with [rows, B], or with [N] once it is flattened.

    A row is one step, or one sequence of steps for recurrent nets.
    """

    rows: Any  # a named tuple of arrays
    valid: Array  # mask of the rows to store


class Drawn(NamedTuple):
    """A minibatch from a replay: arrays begin with [N]."""

    rows: Any
    weight: Array  # [N] of each row's loss, at most 1


class Minibatches(NamedTuple):
    """How a batch is cut: `epochs` passes of `parts` minibatches; whole columns when the net is recurrent."""

    epochs: int
    parts: int
    by_column: bool


class Task(NamedTuple):
    """The task that an algorithm is built for."""

    spec: EnvSpec
    envs: int  # columns of the batch: actors x environments each
    fresh: bool = False  # every unroll begins with a reset
    apart: bool = False  # the learner may not hold the weights that acted: `act` sends log-probabilities in its extras
    workers: int = 1  # workers that learn on the same weights, each counting only its own gradients
    mixed: bool = False  # the same column of two consecutive batches may belong to two environments


class Optimiser(Protocol):
    """An element-wise optax transformation without its learning rate: valid on any slice of the weights."""

    def init(self, params: Any) -> Any: ...
    def update(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]: ...


class Algorithm(Protocol):
    """Protocol of algorithms. Hashable and stateless, so that equal ones are compiled once."""

    Config: ClassVar[type[Any]]  # a frozen dataclass of its settings
    about: ClassVar[str]  # one line for the command line
    net_name: ClassVar[str]  # default net
    usual_topology: ClassVar[str]  # default topology
    topologies: ClassVar[tuple[str, ...]]  # supported topologies; () means all
    replays: ClassVar[bool]  # its `experience` is a `Replay`
    if_trained: ClassVar[Mapping[str, Any]]  # settings whose defaults differ in a run that begins with trained weights

    def __init__(self, config: Any, task: Task, net: Any) -> None: ...

    @property
    def task(self) -> Task: ...

    def __hash__(self) -> int: ...

    @property
    def experience(self) -> Unrolls | Replay: ...

    @property
    def minibatches(self) -> Minibatches: ...

    @property
    def optimiser(self) -> Optimiser: ...

    @property
    def groups(self) -> tuple[ParamGroup, ...]:
        """Parameter groups, one for each top-level name of the params, in sorted order; () treats all params alike.

        A gradient that leaves a group out (`Feedback.moved`) touches neither its params nor its moments.
        """

    def init(self, key: Array) -> LearnerState: ...

    def rate(self, state: LearnerState) -> Array:
        """Current learning rate, before the factors of `groups`."""

    def actor_state(self, state: LearnerState) -> ActorState: ...

    def initial_carry(self, envs: int) -> dict[str, Array]:
        """The recurrent state at the start of an episode, {} for feed-forward."""

    def act(
        self, actor: ActorState, obs: Array, carry: dict[str, Array], first: Array, key: Array, explore: Array
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        """(action, extras, carry) for B environments. `explore` [B] scales the noise: 1 samples, 0 is greedy."""

    def earned(self, before: Array, reward: Array, boundary: Array, valid: Array) -> Array:
        """[B] the discounted return of each environment's running episode after an unroll [T, B]."""

    def prepare(
        self, state: LearnerState, acted: ActorState | None, trajectory: Trajectory, key: Array
    ) -> tuple[LearnerState, Any]:
        """Prepare an unroll: statistics, log-probabilities, advantages. Returns a batch whose arrays begin with [T, B].

        `acted` is the acting state, if the learner still holds it; otherwise `extras` contains what is needed. With a replay
        the batch is a `Kept` of independent rows, and `gradients` receives a `Drawn`.
        """

    def gradients(self, state: LearnerState, minibatch: Any, key: Array) -> tuple[Params, Feedback]:
        """Clipped gradients of the loss on one minibatch. The caller reduces and applies them."""

    def settle(self, state: LearnerState, params: Params) -> LearnerState:
        """The state with params after a gradient, from the optimiser or a table: targets move, the step is counted."""

    def adopt(self, state: LearnerState, params: Params) -> LearnerState:
        """The state with params from outside the run: no gradient is counted, and no target or schedule moves."""
