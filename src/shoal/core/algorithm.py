"""The contract between an algorithm and everything else: pure functions of (state, batch).

An algorithm never knows its topology. `gradients` is split from what happens to them, so that a learner may apply them, a
group may average them and a shared table may add them. Who implements it: `algos`. Who calls it: `roles`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from shoal.core.spec import EnvSpec
from shoal.core.trajectory import Array, Trajectory

Params = dict[str, Any]


class Moments(NamedTuple):
    """Running count, mean and sum of squared deviations; merged by Chan's formula, never averaged."""

    count: Array  # []
    mean: Array  # [...]
    m2: Array  # [...]


class RewardScale(NamedTuple):
    """The spread of discounted returns, and each environment's return so far."""

    moments: Moments
    returns: Array  # [B]


class LearnerState(NamedTuple):
    """All that learning carries from update to update. Every leaf is an array, so that a checkpoint is a list of them."""

    params: Params
    moments: Any  # of the optimiser
    obs: Moments | None  # observation statistics, None when observations stay as they are
    reward: RewardScale | None
    step: Array  # [] int32: gradients applied
    progress: Array  # [] float32: share of the budget that is spent, from 0 to 1; schedules read it
    extra: dict[str, Array]  # what only one algorithm needs: target networks, temperatures


class ActorState(NamedTuple):
    """All that acting needs, and nothing else: it travels whole, as one float32 vector."""

    params: Params  # the policy's; the value's stay with the learner
    obs_mean: Array | None
    obs_scale: Array | None
    explore: dict[str, Array] = {}  # noqa: RUF012  # [] each: the algorithm's own exploration, logged as explore/<name>


class Feedback(NamedTuple):
    """What a gradient tells besides itself."""

    metrics: dict[str, Array]  # scalars
    stop: Array  # [] bool: no further minibatch of this update should be applied
    td: Array | None = None  # [N] the errors of what was drawn from a replay: its next priorities
    moved: Array | None = None  # [groups] bool: parameter groups that this gradient moves; None is all of them


class ParamGroup(NamedTuple):
    """Params under one top-level name, as if they had an optimiser of their own: own rate, moved by some gradients only."""

    name: str
    factor: float = 1.0  # of the learning rate


class Unrolls(NamedTuple):
    """Learns from unrolls as they come. `fresh`: each begins with a reset, so that none is wasted on autoreset."""

    length: int
    fresh: bool = False


class Replay(NamedTuple):
    """Learns from what it remembers: `prepare` gives rows to keep, and minibatches are drawn from all that are kept."""

    length: int  # of an unroll
    batch: int  # rows a gradient
    every: int  # environment steps for each `repeats` gradients
    capacity: int  # rows that are kept, over all actors
    warmup: int  # rows before the first gradient
    repeats: int = 1
    n_step: int = 1
    kind: Literal["uniform", "prioritized"] = "uniform"
    sampler: Literal["seeded", "cpprb"] = "seeded"  # who keeps priorities
    alpha: float = 0.6  # 0 draws all alike, 1 in proportion to the error
    beta: float = 0.4  # how much of the bias of drawing is put right at the start; all of it at the end
    replacement: bool = True  # a row may be twice in one minibatch
    save_limit: float = 1.0  # GiB: a replay that may grow larger is not part of checkpoints
    fresh: bool = False
    sequence: int = 1  # steps of a row: more than one for recurrent nets


class Kept(NamedTuple):
    """What `prepare` gives a replay. Every array begins with [rows, B], or with [N] once it is flattened.

    A row is one step, or one sequence of steps for recurrent nets.
    """

    rows: Any  # a named tuple of arrays
    valid: Array  # rows that are kept


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
    """What an algorithm is built for."""

    spec: EnvSpec
    envs: int  # columns of the batch: actors x environments each
    fresh: bool = False  # every unroll begins with a reset
    apart: bool = False  # the learner may not hold the weights that acted: `act` sends log-probabilities in its extras
    workers: int = 1  # that learn on the same weights, each counting its own gradients alone
    mixed: bool = False  # a column of one batch and of the next may be of two environments


class Optimiser(Protocol):
    """An element-wise optax transformation without its learning rate: valid on any slice of the weights."""

    def init(self, params: Any) -> Any: ...
    def update(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]: ...


class Algorithm(Protocol):
    """Hashable and without state of its own: two equal ones compile once."""

    Config: ClassVar[type[Any]]  # a frozen dataclass of its settings
    about: ClassVar[str]  # one line for the command line
    net_name: ClassVar[str]  # the net that it learns unless another is named
    usual_topology: ClassVar[str]  # where it runs unless another is named
    topologies: ClassVar[tuple[str, ...]]  # those that it suits; () is all of them
    replays: ClassVar[bool]  # its `experience` is a `Replay`

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
        """One for each top-level name of the params, in sorted order; () treats all params alike.

        A gradient that leaves a group out (`Feedback.moved`) touches neither its params nor its moments.
        """

    def init(self, key: Array) -> LearnerState: ...

    def rate(self, state: LearnerState) -> Array:
        """The learning rate now, before the factors of `groups`."""

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
        """Once an unroll: statistics, log-probabilities, advantages. A batch whose arrays begin with [T, B].

        `acted` is what acted, where the learner still holds it; otherwise `extras` has what is needed. With a replay the
        batch is a `Kept` of rows, each of which stands alone, and what `gradients` gets is a `Drawn`.
        """

    def gradients(self, state: LearnerState, minibatch: Any, key: Array) -> tuple[Params, Feedback]:
        """Of the loss on one minibatch, clipped. The caller's reduction and optimiser come after."""

    def settle(self, state: LearnerState, params: Params) -> LearnerState:
        """Take in params after a gradient (from the optimiser, or from a table): targets follow, the step counts."""

    def adopt(self, state: LearnerState, params: Params) -> LearnerState:
        """Take in params from outside the run: no gradient is counted, and no target or schedule moves."""
