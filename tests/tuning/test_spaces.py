"""The grammar of search spaces, what is drawn from them, and how they are refused."""

from __future__ import annotations

import math

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.tuning.distributions import distributions
from shoal.tuning.spaces import (
    Choice,
    Domain,
    Real,
    Whole,
    bucketed,
    draw,
    explore,
    parse_domain,
    parse_space,
    sample,
    written,
)

SLIDES = ["learning_rate=log(1e-5,1e-2)", "unroll=logint(2,100)", "gamma=.9,.95,.99,.995,.999,.9995,.9999"]


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("log(1e-5,1e-2)", Real(1e-5, 1e-2, True)),
        (" log( 1e-5 , 1e-2 ) ", Real(1e-5, 1e-2, True)),
        ("uniform(-1,1)", Real(-1.0, 1.0)),
        ("0.0..0.1", Real(0.0, 0.1)),
        ("-1..1.5", Real(-1.0, 1.5)),
        (".1...5", Real(0.1, 0.5)),
        ("logint(2,100)", Whole(2, 100, True)),
        ("int(1,8)", Whole(1, 8)),
        ("1..8", Whole(1, 8)),
        ("-3..-1", Whole(-3, -1)),
        ("int(16,120,16)", Whole(16, 112, False, 16)),
        (".9,.95,.99", Choice((0.9, 0.95, 0.99))),
        ("1,2,x", Choice((1, 2, "x"))),
        ("rmsprop,adam", Choice(("rmsprop", "adam"))),
        ("64,64;128,128", Choice(("64,64", "128,128"))),
        ("true,false", Choice((True, False))),
        (".99", Choice((0.99,))),
    ],
)
def test_the_grammar(text: str, domain: Domain) -> None:
    assert parse_domain(text) == domain
    assert parse_domain(written(domain)) == domain


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("learning_rat=log(1e-5,1e-2)", "unknown parameter 'learning_rat'. Did you mean 'learning_rate'?"),
        ("zzz=1,2", "unknown parameter 'zzz'. There are: gamma, learning_rate, net.hidden."),
        ("gamma", "expected NAME=VALUES"),
        ("=1,2", "expected NAME=VALUES"),
        ("gamma=", "it has no values"),
        ("gamma=log(1e-2,1e-5)", "the range is empty: 1e-2 is not below 1e-5"),
        ("gamma=1..1", "the range is empty: 1 is not below 1"),
        ("gamma=log(-1,1)", "log needs ends above 0, not -1"),
        ("gamma=log(0,1)", "log needs ends above 0, not 0"),
        ("gamma=logint(0,8)", "logint needs ends above 0, not 0"),
        ("gamma=lgo(1,2)", "unknown kind 'lgo'. Did you mean 'log'"),
        ("gamma=log(1)", "log takes two ends, not 1"),
        ("gamma=log(1,2,3)", "log takes two ends, not 3"),
        ("gamma=int(1,2,3,4)", "int takes two ends and a step, not 4"),
        ("gamma=int(1,9,0)", "the step is 0: at least 1"),
        ("gamma=log(a,b)", "'a' is not a number"),
        ("gamma=int(1,2.5)", "'2.5' is not a whole number"),
        ("gamma=uniform(0,inf)", "inf is not a finite number"),
        ("gamma=.9,nan", "nan is not a finite number"),
        ("gamma=.9,,.99", "a value of the list is empty"),
        ("gamma=.9,0.90", "the list has 0.90 twice"),
    ],
)
def test_refusals_are_one_line_with_the_entry(entry: str, told: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_space([entry], known=["gamma", "learning_rate", "net.hidden"])
    assert str(refused.value).startswith(f"--space {entry!r}: ") and told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_is_given_once_and_dashes_are_underscores() -> None:
    assert parse_space(["learning-rate=1,2"], known=["learning_rate"]) == {"learning_rate": Choice((1, 2))}
    with pytest.raises(BadInput, match="'gamma' is given twice"):
        parse_space(["gamma=1,2", "gamma=3,4"])


DOMAINS = st.sampled_from([*parse_space(SLIDES).values(), Whole(16, 112, False, 16), Real(-1, 1), Whole(1, 2, True)])


@given(DOMAINS, st.floats(0, 1, exclude_max=True))
def test_what_is_drawn_lies_in_the_space(domain: Domain, u: float) -> None:
    value = draw(domain, u)
    if isinstance(domain, Choice):
        assert value in domain.values
    else:
        assert domain.low <= value <= domain.high  # type: ignore[operator]
        assert not isinstance(domain, Whole) or (isinstance(value, int) and (value - domain.low) % domain.step == 0)


def test_the_ends_and_the_middle() -> None:
    almost = math.nextafter(1.0, 0.0)
    assert [draw(Whole(2, 4), u) for u in (0.0, 0.5, almost)] == [2, 3, 4]
    assert [draw(Whole(2, 100, True), u) for u in (0.0, almost)] == [2, 100]
    assert draw(Real(1e-5, 1e-1, True), 0.5) == pytest.approx(1e-3)


def test_a_trial_has_one_configuration_whoever_asks() -> None:
    space = parse_space(SLIDES)
    again = parse_space(SLIDES[::-1])
    assert all(sample(space, seed=1, trial=t) == sample(again, seed=1, trial=t) for t in range(20))
    assert len({tuple(sample(space, seed=1, trial=t).values()) for t in range(50)}) == 50
    rates = [float(sample(space, seed=2, trial=t)["learning_rate"]) for t in range(1000)]
    assert sum(rate < 10**-3.5 for rate in rates) == pytest.approx(500, abs=60)


def test_explore_moves_every_setting_within_its_domain() -> None:
    space = {**parse_space(SLIDES), "small": Whole(1, 9)}
    settings = {"learning_rate": 1e-3, "unroll": 20, "gamma": 0.99, "small": 2}
    found = [explore(space, settings, seed=0, trial=3, unit=unit) for unit in range(200)]
    assert {one["learning_rate"] for one in found} >= {0.8 * 1e-3, 1.2 * 1e-3}
    assert {one["unroll"] for one in found} >= {16, 24}
    assert {one["gamma"] for one in found} >= {0.95, 0.995}
    assert {one["small"] for one in found} >= {1, 3}  # a factor of 1.2 alone would leave 2 where it is
    assert sum(one["learning_rate"] not in (0.8 * 1e-3, 1.2 * 1e-3) for one in found) == pytest.approx(50, abs=25)
    ends = explore({"x": Real(0.0, 1.0)}, {"x": 1.0}, seed=0, trial=0, unit=1)
    assert 0 <= float(ends["x"]) <= 1


def test_optuna_samples_the_same_space() -> None:
    space = {**parse_space(SLIDES), "width": Whole(16, 112, False, 16)}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):
        params = study.ask(fixed_distributions=distributions(space)).params
        assert list(params) == list(space)
        assert params["gamma"] in space["gamma"].values  # type: ignore[union-attr]
        assert (params["width"] - 16) % 16 == 0 and 2 <= params["unroll"] <= 100


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (Whole(2, 100, True), (2, 3, 6, 11, 19, 33, 57, 100)),
        (Whole(1, 5), (1, 2, 3, 4, 5)),
        (Whole(16, 112, False, 16), (16, 32, 48, 64, 80, 96, 112)),
        (Whole(-3, 40), (-3, -2, -1, 1, 5, 11, 22, 40)),
        (Whole(16, 512, False, 16), (16, 32, 48, 64, 112, 192, 320, 512)),
    ],
)
def test_a_few_values_of_a_range_have_equal_ratios(domain: Whole, values: tuple[int, ...]) -> None:
    assert bucketed(domain, 8).values == values
