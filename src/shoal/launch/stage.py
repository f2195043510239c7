"""The evaluating process's code: it plays and films on request, and answers in typed messages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import msgspec
import numpy as np

from shoal.acting.player import Ended, Policy, play
from shoal.core.algorithm import Algorithm
from shoal.core.errors import BadInput
from shoal.core.weights import Layout, layout_of
from shoal.envs.source import Source
from shoal.runtimes.guarded import OUTSIDE, Mark

Record = Callable[..., bytes]  # `observe.video.record`, which lives above this package


class PlayRequest(msgspec.Struct, frozen=True, tag="play"):
    """Play these episodes. `actor` is the acting part of the weights, as one float32 vector."""

    todo: list[tuple[int, int]]  # (episode, attempt)
    size: int  # episodes at a time
    sample: bool
    seed: int
    limit: int  # steps of an episode
    actor: bytes


class FilmRequest(msgspec.Struct, frozen=True, tag="film"):
    """Film one greedy episode."""

    seed: int
    max_steps: int
    seconds: float  # of drawing, after which the clip is cut
    backend: str | None  # MuJoCo's renderer; None leaves the choice to it
    actor: bytes


class EndedMessage(msgspec.Struct, frozen=True, tag="ended"):
    """An episode was played to its end, or cut at the limit."""

    episode: int
    ret: float
    length: int
    cut: bool


class BrokeMessage(msgspec.Struct, frozen=True, tag="broke"):
    """The environment broke; the episode begins again."""

    episode: int
    kind: str
    detail: str


class ClipMessage(msgspec.Struct, frozen=True, tag="clip"):
    """An mp4."""

    data: bytes


class NoPictureMessage(msgspec.Struct, frozen=True, tag="no picture"):
    """The environment cannot be drawn."""

    reason: str


Request = PlayRequest | FilmRequest
Message = EndedMessage | BrokeMessage | ClipMessage | NoPictureMessage
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(words: Request | Message) -> bytes:
    return msgspec.msgpack.encode(words)


def decode(data: bytes) -> Message:
    return _messages.decode(data)


@dataclass(frozen=True)
class Stage:
    """A recipe without live objects, so that it can be sent to another process. Called there with each request."""

    algorithm: Algorithm
    source: Source
    record: Record | None = None

    def __call__(self, request: bytes, mark: Mark) -> Iterator[bytes]:
        asked = _requests.decode(request)
        actor = self._layout.tree(np.frombuffer(asked.actor, np.float32))
        if isinstance(asked, FilmRequest):
            yield encode(self._film(asked, actor, mark))
            return
        for event in play(
            self.algorithm,
            actor,
            self.source.single,
            asked.todo,
            asked.size,
            sample=asked.sample,
            seed=asked.seed,
            limit=asked.limit,
            mark=mark,
        ):
            yield encode(EndedMessage(*event) if isinstance(event, Ended) else BrokeMessage(*event))

    @cached_property
    def _layout(self) -> Layout:
        algorithm = self.algorithm
        return layout_of(jax.eval_shape(lambda: algorithm.actor_state(algorithm.init(jax.random.key(0)))))

    def _film(self, asked: FilmRequest, actor: Any, mark: Mark) -> Message:
        assert self.record is not None
        if asked.backend is not None:
            os.environ["MUJOCO_GL"] = asked.backend
        policy = Policy(self.algorithm, actor, 1, sample=False, seed=asked.seed)
        mark(0)
        try:
            env: Any = self.source.single(render=True)
        except Exception as error:  # the environment's own, or its renderer's
            return NoPictureMessage(f"{self.source.name} cannot be drawn: {_line(error)}")
        finally:
            mark(OUTSIDE)
        try:
            watched: Any = _Marked(env, mark)
            limits = {"max_steps": asked.max_steps, "seconds": asked.seconds}
            return ClipMessage(self.record(watched, policy.alone, seed=asked.seed, name=self.source.name, **limits))
        except BadInput as error:
            return NoPictureMessage(str(error))
        except Exception as error:
            return BrokeMessage(0, "env_raised", _line(error))
        finally:
            with contextlib.suppress(Exception):
                env.close()


class _Marked:
    """An environment whose calls are marked."""

    def __init__(self, env: Any, mark: Mark) -> None:
        self.reset, self.step, self.render = (self._marked(f, mark) for f in (env.reset, env.step, env.render))

    @staticmethod
    def _marked(method: Callable[..., Any], mark: Mark) -> Callable[..., Any]:
        def call(*words: Any) -> Any:
            mark(0)
            try:
                return method(*words)
            finally:
                mark(OUTSIDE)

        return call


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
