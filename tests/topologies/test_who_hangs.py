"""Only who steps an environment may be taken to hang: whoever else is silent may be compiling."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.experiment import resolve
from shoal.launch.compose import make_blueprint

CASES: dict[str, dict[str, Any]] = {
    "sync": {"algo": "ppo"},
    "actor_learner": {"algo": "a2c", "learners": 2},
    "shared_params": {"algo": "a2c", "topology": {"name": "shared_params", "consistency": "sharded"}},
    "seed": {"algo": "a2c"},
    "ga3c": {"algo": "a2c"},
    "dyna": {"algo": "dyna_q"},
}


@pytest.mark.parametrize("topology", CASES)
def test_actors_are_those_with_environments(topology: str) -> None:
    settings = {"topology": topology, "runtime": "inline", "actors": 2, "envs": 2, "net": {"hidden": (8,)}}
    plan = resolve("CartPole-v1", {**settings, **CASES[topology]})
    program = plan.topology_class(plan.topology).program(make_blueprint(plan, None, None))
    others = [spec for spec in program.roles if not spec.main]
    stepping = [spec.name for spec in others if spec.name.startswith(("actor-", "worker-"))]
    assert stepping and [spec.name for spec in others if spec.steps_env] == stepping
