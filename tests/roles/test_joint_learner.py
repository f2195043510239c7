"""Learners that are one, when one of them dies: its successor knows all that the others know."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from shoal.core.ports import NOT_YET
from shoal.core.program import Context, Report
from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint
from shoal.runtimes.memory import Place, Silent, plain_ports, private_arena
from shoal.runtimes.session import attempt, resume

T, B = 8, 4


class Crew:
    """Roles in turn, each with an end of its own at every port, so that one may die and another come in its place."""

    def __init__(self, **topology: Any) -> None:
        settings = {"backend": "jax", "algo": {"name": "a2c", "unroll": T}, "net": {"hidden": (8,)}, "envs": B}
        settings |= {"topology": {"name": "actor_learner", **topology}, "runtime": "inline", "actors": 2, "learners": 2}
        plan = resolve("CartPole-v1", {**settings, "steps": 1000 * T * B})
        self.program = plan.topology_class(plan.topology).program(make_blueprint(plan, None, None))
        self._arena = private_arena(self.program.ports)
        self._bells = dict.fromkeys([role.name for role in self.program.roles], Silent())
        self.roles: dict[str, Any] = {}
        self._steps: dict[str, Any] = {}
        self._waiting: dict[str, Any] = {}
        self.progress: dict[int, dict[str, float]] = defaultdict(dict)  # by version, then learner
        for spec in self.program.roles:
            self.build(spec.name)

    def build(self, name: str) -> None:
        spec = next(spec for spec in self.program.roles if spec.name == name)
        ports = plain_ports(self.program.ports, self._arena, Place(None, self._bells))
        role = self.roles[name] = spec.build(ports, Context(name=name, fault=lambda fault: None))
        self._steps[name], self._waiting[name] = role.run(), None
        if name.startswith("learner"):
            self._spy(name, role)

    def _spy(self, name: str, role: Any) -> None:
        update = role._update

        class Spy:
            def compile(self, *rest: Any) -> None:
                update.compile(*rest)

            def __call__(spy, state: Any, acted: Any, slots: Any, version: int, progress: float) -> Any:
                self.progress[version][name] = progress
                return update(state, acted, slots, version, progress)

        role._update = Spy()

    def until(self, version: int) -> Report:
        """The report of this version."""
        while True:
            for name in list(self._steps):
                op = self._waiting[name]
                answer = None if op is None else attempt(op)
                while answer is not NOT_YET:
                    asked = resume(self._steps[name], answer)
                    if isinstance(asked, Report):
                        self._waiting[name] = None
                        if asked.version >= version:
                            return asked
                        answer = None
                    else:
                        self._waiting[name], answer = asked, attempt(asked)

    def replace(self, name: str) -> None:
        self._steps[name].close()
        self.build(name)


@pytest.mark.parametrize("topology", [{"stream": "window"}, {"max_lag": 3, "batch_unrolls": 1, "depth": 2}])
def test_a_successor_goes_on_with_the_same_totals(topology: dict[str, Any]) -> None:
    crew = Crew(**topology)
    before = crew.until(12)
    crew.replace("learner-1")
    after = crew.until(20)
    assert after.env_steps > before.env_steps, "nothing goes back"
    rounds = [found for version, found in crew.progress.items() if version >= 12 and len(found) == 2]
    assert len(rounds) >= 7
    for found in rounds:
        assert found["learner-0"] == found["learner-1"], "schedules read it: another would be another learning rate"


def test_what_the_actors_tell_is_counted_once_whichever_round_is_broken() -> None:
    crew = Crew(stream="window")
    for version in range(3, 25, 3):
        crew.until(version)
        crew.replace("learner-1")
    report = crew.until(30)
    assert report.env_steps == crew.roles["learner-0"]._actor_news.steps
