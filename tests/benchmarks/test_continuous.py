"""The benchmarks of continuous control: what they count, and rows that survive a failure beside them."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from shoal.algos.td3 import TD3, TD3Config
from shoal.core.algorithm import Drawn, Task
from shoal.core.trajectory import Transitions
from shoal.envs.pendulum import Pendulum
from shoal.experiment import resolve
from shoal.nets.continuous import ContinuousNetConfig, DeterministicNet


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module


def products(jaxpr: Any) -> float:
    """Operations of the matrix products of a jaxpr; a branch counts half, since a policy delay of 2 takes it every second time."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (over, _), _ = equation.params["dimension_numbers"]
            shared = math.prod(equation.invars[0].aval.shape[axis] for axis in over)
            total += 2 * shared * math.prod(equation.outvars[0].aval.shape)
        share = 0.5 if equation.primitive.name == "cond" else 1.0
        for inner in jaxprs_in_params(equation.params):
            total += share * products(inner)
    return total


def test_the_operations_of_an_update_are_those_of_its_matrix_products(load: Any) -> None:
    spec, hidden, batch = Pendulum().spec, (24, 16), 8
    net = DeterministicNet(ContinuousNetConfig(hidden=hidden), spec)
    algorithm = TD3(TD3Config(batch_size=batch), Task(spec=spec, envs=4), net)

    def wanted(*shape: int) -> Any:
        return jax.ShapeDtypeStruct((batch, *shape), "float32")

    drawn = Drawn(Transitions(wanted(3), wanted(1), wanted(), wanted(), wanted(3)), wanted())
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    closed = jax.make_jaxpr(algorithm.gradients)(state, drawn, jax.random.key(0))
    counted = load("update_share").flops(hidden, 3, 1, batch)
    assert counted == pytest.approx(products(closed.jaxpr), rel=0.02)


def test_a_baseline_that_fails_leaves_the_other_rows(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms, continuous = load("rooms"), load("continuous")

    def fails(*words: Any, **settings: Any) -> None:
        raise rooms.Failed("exit code 2")

    monkeypatch.setattr(rooms, "run_json", fails)
    monkeypatch.setattr(continuous, "train", lambda *words, **settings: {"who": "Shoal", "eval_mean": -9.0})
    rows, targets = continuous.booster(quick=True)
    assert [row.get("error", row.get("eval_mean")) for row in rows] == ["exit code 2", -9.0] * 2
    assert [target.met for target in targets] == [None, None]


def test_the_dense_nets_beside_a_memory_have_as_many_parameters(load: Any) -> None:
    def parameters(env: str, algo: str, **net: Any) -> int:
        plan = resolve(env, {"algo": algo, "runtime": "fused", "net": net})
        of = plan.net_class(plan.net, plan.spec)
        params = jax.eval_shape(lambda key: of.init(key, 2) if algo == "sac" else of.init(key), jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(params))

    for env, algo, (flag, widths), _ in load("continuous").MASKED:
        assert flag == "--net.hidden"
        dense = parameters(env, algo, cell="none", hidden=tuple(int(width) for width in widths.split(",")))
        assert dense == pytest.approx(parameters(env, algo), rel=1e-2)
