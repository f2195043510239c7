"""A child: an ordinary run that exchanges weights with a parent. `join` is the only entry point."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal import launch
from shoal.core.errors import BadInput, RunFailed
from shoal.experiment import Plan, resolve
from shoal.experiment import join as join_runtime
from shoal.federation import wire
from shoal.federation.addresses import address_of, server_tls
from shoal.federation.client import Lost
from shoal.federation.courier import Courier, Exchanged
from shoal.federation.driver import ExchangeDriver
from shoal.federation.link import Link
from shoal.federation.settings import ExchangeConfig, understood
from shoal.federation.vectors import StateVectors
from shoal.launch.compose import make_blueprint, state_shapes
from shoal.process.device import settle_process
from shoal.run.folder import RunFolder

FIRST = 60.0  # seconds for the first weights to arrive


class Joined(NamedTuple):
    """Result of a child."""

    child: str
    result: launch.Result
    exchanges: int
    bytes_up: int
    bytes_down: int
    milliseconds: tuple[float, ...]  # of the last exchanges
    rejoined: int

    def summary(self) -> dict[str, Any]:
        """Summary of the exchanges and of the run, for people and programs."""
        quantiles = np.quantile(self.milliseconds, (0.5, 0.99)).tolist() if self.milliseconds else (None, None)
        known = self.result.summary
        return {
            "child": self.child,
            "exchanges": self.exchanges,
            "rejoined": self.rejoined,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "exchange_ms_p50": quantiles[0],
            "exchange_ms_p99": quantiles[1],
            **{name: known[name] for name in ("env_steps", "updates", "episodes", "ended", "params_sha256", "run")},
        }


def join(
    url: str | None = None,
    *,
    token: str,
    name: str = "",
    listen: str | None = None,
    pin: str = "",
    cert: str | Path | None = None,
    key: str | Path | None = None,
    trust: bool = False,
    out: str | Path | None = None,
    quiet: bool = False,
    say: Callable[[str], None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Joined:
    """Train as a child of the parent at `url`, or of the one that dials `listen`, until it says stop or the budget is spent.

    The parent chooses environment, algorithm, net and budget. `settings` are this machine's choices: topology, runtime, actors,
    envs, backend, seed. `trust` allows the parent to name code by import path. Raises `BadInput` if the parent cannot be
    reached, if it refuses, or if this machine cannot run what it asks for.
    """
    say = say or _say
    child = name or default_name()
    if (url is None) == (listen is None):
        raise BadInput("give the address of a parent, or --listen HOST:PORT to wait for one")
    tls = server_tls(Path(cert) if cert else None, Path(key) if key else None)
    address = None if listen is None else address_of(listen)
    encoding: wire.Encoding = "float32"  # until the parent's settings are known
    try:
        while True:
            courier = Courier(child, token, encoding=encoding)
            with Link(url, courier, pin=pin, listen=address, token=token, tls=tls, say=say) as link:
                if address is not None:
                    say(f"{child} waits for its parent at {link.url}")
                    link.wait_joined()
                assert courier.welcome is not None
                plan, exchange = planned(courier.welcome, dict(settings or {}), child, trust)
                if exchange.encoding != encoding:  # the encoding is part of the hello: join again
                    encoding = exchange.encoding
                    continue
                return _train(link, courier, child, url or "", plan, exchange, out, quiet, say)
    except Lost as error:
        raise BadInput(str(error)) from None


def default_name() -> str:
    """The machine's name with a few random letters, so that names are unique."""
    host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname().split(".")[0])[:40]
    return f"{host.strip('-') or 'child'}-{os.getpid()}-{secrets.token_hex(2)}"


def _train(
    link: Link,
    courier: Courier,
    child: str,
    url: str,
    plan: Plan,
    exchange: ExchangeConfig,
    out: str | Path | None,
    quiet: bool,
    say: Callable[[str], None],
) -> Joined:
    welcome = courier.welcome
    assert welcome is not None
    settle_process()
    vectors = StateVectors(state_shapes(plan), moments=bool(welcome.moments))
    check_same(welcome, vectors, plan)
    courier.architecture, link.datagrams = vectors.architecture, exchange.transport == "udp"
    if link.datagrams and not url:
        raise BadInput("--listen: a parent that dials sends no datagrams")
    link.give(None)
    begun = link.take(FIRST)
    if begun is None or begun.weights is None:
        raise RunFailed(f"the parent sent no weights within {FIRST:g} s")
    driver = ExchangeDriver(link, vectors, exchange, begun, say)
    result = launch.run(
        plan,
        out=RunFolder.create(out, plan.source.name, plan.settings.algo, child),
        weights=first_leaves(vectors, begun),
        ahead=welcome.spent,
        driver=driver,
        quiet=quiet,
    )
    driver.finish(result.state)
    return Joined(
        child, result, driver.exchanges, link.bytes_up, link.bytes_down, tuple(link.milliseconds), link.rejoined
    )


def planned(welcome: wire.Welcome, own: Mapping[str, Any], child: str, trust: bool) -> tuple[Plan, ExchangeConfig]:
    """Resolve the run from the parent's welcome and this machine's choices."""
    env, loose, exchange = understood(welcome.settings, own, child, trust=trust)
    join_runtime(loose)
    plan = resolve(env, loose)
    if welcome.moments and plan.settings.learners > 1:
        raise BadInput(f"--learners is {plan.settings.learners}: where moments travel, a child has one learner")
    topology = plan.topology_class(plan.topology)
    if welcome.moments and not topology.one_optimiser(make_blueprint(plan, None, None, driven=True)):
        raise BadInput(
            f"--topology {plan.settings.topology}: its workers have moments of their own, and the parent's --moments travel"
            " needs shared ones; choose another topology or settings with which --topology.moments shared is possible"
        )
    return plan, exchange


def check_same(welcome: wire.Welcome, vectors: StateVectors, plan: Plan) -> None:
    """Raise `BadInput` unless this machine's weights have the parent's layout."""
    if vectors.architecture != welcome.architecture or vectors.layout.size != welcome.size:
        raise BadInput(
            f"architecture: {plan.source.name} with {plan.settings.algo} and {plan.settings.net} has {vectors.layout.size}"
            f" weights here ({vectors.architecture}), {welcome.size} at the parent ({welcome.architecture})"
        )
    if vectors.observed != welcome.normaliser or vectors.moments != welcome.moments:
        raise BadInput("architecture: the parent's normaliser or moments differ from those of the run on this machine")


def first_leaves(vectors: StateVectors, begun: Exchanged) -> dict[str, np.ndarray]:
    """Leaves of the state that a child begins with. Weights that no child has changed yet do not count as trained.

    Moments that travel come with a count of updates: without it an optimiser would correct them as if they had just begun.
    """
    assert begun.weights is not None
    leaves = vectors.leaves(begun.weights, begun.normaliser, begun.moments)
    if not begun.version:
        return {name: leaf for name, leaf in leaves.items() if name != "step"}
    return {**leaves, **vectors.counters(begun.version if begun.moments else 0)}


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
