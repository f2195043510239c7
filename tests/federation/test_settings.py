"""What a parent tells its children is data: known entries, typed, and no code unless the child's user trusts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from families import parent_of

from shoal.cli.federation_flags import sort
from shoal.cli.flags import split
from shoal.core.errors import BadInput
from shoal.experiment import resolve
from shoal.federation.child import planned
from shoal.federation.settings import FederationConfig, overlaid, rule_of, seed_of, told, understood
from shoal.launch.compose import make_blueprint
from shoal.studies.reproduce import experiments_folder, read_spec
from shoal.studies.words import flags_of


def settings(**changes: Any) -> dict[str, Any]:
    plan = resolve("CartPole-v1", {"algo": "a2c", "steps": 1000, "topology": "shared_params"})
    return {**told(plan, FederationConfig(every_updates=3), {"name": "shared_params"}), **changes}


def test_what_is_told_is_understood() -> None:
    env, loose, exchange = understood(settings(), {"actors": "2"}, "one", trust=False)
    assert env == "CartPole-v1"
    assert loose["topology"]["name"] == "shared_params" and loose["algo"]["name"] == "a2c"
    assert loose["steps"] == 1000 and loose["actors"] == "2" and loose["eval_episodes"] == 0
    assert exchange.every_updates == 3 and exchange.episodes == 0 and loose["report_every"] == 3
    assert loose["seed"] == seed_of(0, "one") != seed_of(0, "two")


def test_a_topology_that_nobody_chose_is_left_to_the_child() -> None:
    plan = resolve("CartPole-v1", {"algo": "a2c", "steps": 1000})
    _, loose, _ = understood(told(plan, FederationConfig()), {"runtime": "fused"}, "one", trust=False)
    assert "topology" not in loose and resolve("CartPole-v1", loose).settings.topology == "sequential"


def lunar(topology: str | None = None, **algo: Any) -> Any:
    """A child's settings of A2C on LunarLander-v3; `algo`: what the parent's user has given."""
    table = {"name": "a2c", **algo}
    plan = resolve("LunarLander-v3", {"algo": table})
    env, loose, _ = understood(
        told(plan, FederationConfig(), None, table), {"topology": topology} if topology else {}, "one", trust=False
    )
    return resolve(env, loose).algo


def test_the_algorithms_defaults_are_those_of_the_childs_topology() -> None:
    """Tuned settings differ between topologies, and the parent's own topology says nothing about a child's."""
    alone = resolve("LunarLander-v3", {"algo": "a2c", "topology": "shared_params"}).algo
    assert lunar("shared_params") == alone
    assert lunar() == resolve("LunarLander-v3", {"algo": "a2c"}).algo != alone
    given = lunar("shared_params", gamma=0.9, **{"max-grad-norm": "2"})
    assert (given.gamma, given.max_grad_norm, given.learning_rate) == (0.9, 2.0, alone.learning_rate)


def test_a_child_chooses_its_topology_and_keeps_the_parents_without() -> None:
    _, loose, _ = understood(settings(), {"topology": "sync", "seed": "5"}, "one", trust=False)
    assert loose["topology"] == {"name": "sync"}  # fields of the other one are gone
    assert loose["seed"] == "5"


@pytest.mark.parametrize("name", ["algo", "net", "algo.clip", "steps", "until_return"])
def test_what_is_the_parents_is_not_the_childs(name: str) -> None:
    with pytest.raises(BadInput, match="is chosen by the parent"):
        understood(settings(), {name: "1"}, "one", trust=False)


@pytest.mark.parametrize(
    "change",
    [
        {"env": "os:system"},
        {"env": "gymnasium.envs:CartPole-v1"},
        {"algo": {"name": "os:abort"}},
        {"net": {"name": "mypkg:Net"}},
        {"topology": {"name": "mypkg:Mine"}},
    ],
)
def test_code_that_the_parent_names_is_not_imported(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="--trust-env"):
        understood(settings(**change), {}, "one", trust=False)
    understood(settings(**change), {}, "one", trust=True)  # nothing is imported here yet


@pytest.mark.parametrize(
    "change", [{"env": None}, {"env": 3}, {"sinks": ["wandb"]}, {"out": "/etc"}, {"algo": "ppo"}, {"exchange": [1]}]
)
def test_what_no_parent_sends_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="the parent's settings"):
        understood(settings(**change), {}, "one", trust=False)


@pytest.mark.parametrize(
    "exchange", [{"every_updates": -1}, {"every_seconds": "soon"}, {"encoding": "pickle"}, {"code": "x"}]
)
def test_the_exchange_is_typed(exchange: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        understood(settings(exchange=exchange), {}, "one", trust=False)


def test_several_children_share_the_schedule_and_updates_leave_steps_open() -> None:
    plan = resolve("CartPole-v1", {"algo": "a2c", "steps": 1000})
    assert told(plan, FederationConfig())["schedule_steps"] is None
    shared = told(plan, FederationConfig(expect=4))
    assert (shared["steps"], shared["schedule_steps"]) == (1000, 250)
    counted = told(plan, FederationConfig(updates=10))
    assert counted["steps"] > 10**9 and counted["schedule_steps"] == 1000


def test_schedule_steps_reach_the_children(tmp_path: Path) -> None:
    """They describe one child's course, so several children do not share them, and a budget of updates does not hide them."""
    for number, federation in enumerate(
        (FederationConfig(updates=10), FederationConfig(expect=4), FederationConfig(updates=10, expect=2))
    ):
        parent = parent_of(tmp_path / str(number), algo="a2c", steps=1000, schedule_steps=700, federation=federation)
        assert parent.hub.federation.settings["schedule_steps"] == 700
        plan, _ = planned(parent.hub.welcome("one"), {"runtime": "inline"}, "one", False)
        assert plan.settings.schedule_steps == 700
        assert make_blueprint(plan, None, None, driven=True).horizon == 700


@pytest.mark.parametrize("name", ["genkidama-alpha-beta", "genkidama-vs-a3c"])
def test_experiments_that_count_updates_say_how_long_schedules_are(name: str) -> None:
    """Otherwise a slow child would stop in the middle of a schedule made for another budget."""
    spec = read_spec(experiments_folder() / name)
    assert 700_000 <= spec["all"]["settings"]["schedule_steps"] <= 1_000_000
    words = flags_of(spec["all"]["settings"])
    sorted_ = sort(split(["LunarLander-v3", *words], ("quiet",)), ("slow",))
    settings = {name: value for name, value in sorted_.settings.items() if name != "runtime"}
    assert resolve("LunarLander-v3", settings).settings.schedule_steps == spec["all"]["settings"]["schedule_steps"]


@pytest.mark.parametrize(("field", "value"), [("alpha", "1.5"), ("beta", "-0.1"), ("gamma", "1"), ("alpha", "much")])
def test_settings_of_a_rule_are_checked(field: str, value: str) -> None:
    with pytest.raises(BadInput, match=field):
        rule_of(FederationConfig(), {field: value})


def test_an_unknown_rule_names_those_that_exist() -> None:
    with pytest.raises(BadInput, match="alpha_beta"):
        FederationConfig(rule="alphabeta")


def test_single_settings_replace_the_stored_ones_and_leave_the_others() -> None:
    stored = FederationConfig(rule="staleness", encoding="int8", every_updates=5, expect=3)
    config, rule = overlaid(
        stored, {"alpha": 0.7, "power": 0.3}, {"updates": "50", "eval_every": "9"}, {"alpha": "0.2"}
    )
    assert config == FederationConfig(
        rule="staleness", encoding="int8", every_updates=5, expect=3, updates=50, eval_every=9
    )
    assert rule == {"alpha": "0.2", "power": 0.3}
    assert overlaid(stored, {"alpha": 0.7}, None, None) == (stored, {"alpha": 0.7})


def test_another_rule_begins_with_its_own_settings_and_the_result_is_checked() -> None:
    stored = FederationConfig(consistency="hogwild")
    assert overlaid(FederationConfig(), {"alpha": 0.9}, {"rule": "staleness"}, None)[1] == {}
    with pytest.raises(BadInput, match="hogwild"):
        overlaid(stored, {"alpha": 0.9}, {"rule": "median"}, None)
    with pytest.raises(BadInput, match="alpha is 2"):
        overlaid(stored, {"alpha": 0.9}, None, {"alpha": "2"})
