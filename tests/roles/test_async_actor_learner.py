"""Actors apart: what an actor has done reaches whoever reports, though for a time there is no room to say it."""

from __future__ import annotations

from typing import Any

from shoal.core.ports import NOT_YET
from shoal.core.program import Context
from shoal.core.weights import to_vector
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.roles.async_actor_learner import ActorNews
from shoal.runtimes.inline import inline_ports
from shoal.runtimes.session import attempt, resume

T, B, UNROLLS = 8, 4, 20


def run_on(steps: Any, waiting: Any) -> Any:
    """Until it has to wait: what it waits for."""
    asked = waiting
    while (answer := None if asked is None else attempt(asked)) is not NOT_YET:
        asked = resume(steps, answer)
    return asked


def test_the_last_words_of_an_actor_wait_for_room() -> None:
    topology = {"name": "actor_learner", "stream": "window", "actor_unrolls": UNROLLS, "batch_unrolls": 1}
    settings = {"backend": "jax", "algo": {"name": "a2c", "unroll": T}, "net": {"hidden": (8,)}, "envs": B}
    plan = resolve("CartPole-v1", {**settings, "topology": topology, "runtime": "inline", "actors": 1, "steps": 10**6})
    blueprint = make_blueprint(plan, None, None)
    program = plan.topology_class(plan.topology).program(blueprint)
    ports = inline_ports(program.ports, [role.name for role in program.roles])
    spec = next(role for role in program.roles if role.name == "actor-0")
    actor = spec.build(ports, Context(name="actor-0", fault=lambda fault: None))
    ports["weights"].publish(0, to_vector(blueprint.algorithm.actor_state(blueprint.initial_state())))
    told, steps, waiting, episodes = ActorNews(blueprint, ports), actor.run(), None, []
    for _ in range(2 * UNROLLS):  # a window never makes it wait: it has ended before anybody listens
        waiting = run_on(steps, waiting)
    assert ports["unrolls"].pushed(0) == UNROLLS
    for _ in range(5):
        episodes += told.listen()
        waiting = run_on(steps, waiting)
    assert told.steps == UNROLLS * T * B, "each step that it has made"
    assert 0.7 * told.steps < sum(episode.length for episode in episodes) <= told.steps
    actor.close()
