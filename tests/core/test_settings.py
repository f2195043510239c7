"""Settings from words and files, and what is said of wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from shoal.core.config import Fraction, Positive, as_dict, build, field_help, replace
from shoal.core.errors import BadInput, nearest
from shoal.core.keys import ACTING, LEARNING, key_data
from shoal.core.program import BoardSpec, GroupSpec, Program, check_fits


@dataclass(frozen=True, kw_only=True)
class Base:
    rate: Fraction = 0.5
    """how much"""


@dataclass(frozen=True, kw_only=True)
class Config(Base):
    count: Positive = 3
    """how many,
    in all"""
    widths: tuple[int, ...] = (1, 2)
    """a list"""
    kind: Literal["a", "b"] = "a"
    """one of two"""
    limit: float | None = None
    """maybe"""
    flag: bool = False
    """on or off"""


def test_words_become_what_the_type_asks_for() -> None:
    words = {"count": "7", "widths": "8,16", "kind": "b", "limit": "2.5", "flag": "true", "rate": "1"}
    assert build(Config, words) == Config(count=7, widths=(8, 16), kind="b", limit=2.5, flag=True, rate=1.0)
    assert build(Config, {"limit": "none"}).limit is None
    assert build(Config, {"widths": [4]}).widths == (4,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cuont": 3}, r"unknown setting --algo\.cuont\. Did you mean '--algo\.count'\?"),
        ({"count": 0}, r"--algo\.count is 0: .*>= 1"),
        ({"count": "many"}, r"--algo\.count is 'many': expected a whole number"),
        ({"rate": 1.5}, r"--algo\.rate is 1\.5: .*<= 1"),
        ({"kind": "c"}, r"--algo\.kind is 'c'"),
        ({"widths": "8,x"}, r"--algo\.widths is '8,x'"),
    ],
)
def test_wrong_values_are_named_with_their_rule(values: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        build(Config, values, "algo.")
    assert "\n" not in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    rate: float = 1.0
    rates: tuple[float, ...] = ()
    name: str = ""


def test_a_number_may_begin_with_its_point() -> None:
    told = {"rate": ".6", "rates": ".25,-.5,.5e-1", "name": ".6"}
    assert build(Numbers, told) == Numbers(rate=0.6, rates=(0.25, -0.5, 0.05), name=".6")


def test_replace_checks_too_and_keeps_the_rest() -> None:
    assert replace(Config(count=9), {"rate": "0.25"}) == Config(count=9, rate=0.25)
    with pytest.raises(BadInput):
        replace(Config(), {"rate": 2})


def test_as_dict_is_read_again() -> None:
    config = Config(count=5, widths=(3,), limit=1.5)
    assert build(Config, as_dict(config)) == config


def test_field_docstrings_are_the_help() -> None:
    assert field_help(Config) == {
        "rate": "how much",
        "count": "how many, in all",
        "widths": "a list",
        "kind": "one of two",
        "limit": "maybe",
        "flag": "on or off",
    }


def test_nearest_suggests_only_what_is_near() -> None:
    assert nearest("pp0", ["ppo", "a2c"]) == " Did you mean 'ppo'?" and nearest("zzz", ["ppo"]) == ""


def test_keys_belong_to_their_path() -> None:
    paths = [(0, ACTING, 0, 0), (0, ACTING, 0, 1), (0, ACTING, 1, 0), (1, ACTING, 0, 0), (0, LEARNING, 0)]
    keys = [key_data(*path) for path in paths]
    assert len({key.tobytes() for key in keys}) == len(paths)
    assert all(key.dtype == np.uint32 and key.shape == (2,) for key in keys)
    assert key_data(0, ACTING, 0, 1).tobytes() == keys[1].tobytes()


def test_a_program_that_does_not_fit_names_the_port() -> None:
    ports = {"w": BoardSpec(writer="a", readers=("b",), size=1, history=1), "g": GroupSpec(members=2, size=1)}
    program = Program(roles=(), ports=ports)
    check_fits(program, "inline", frozenset({"Board", "Group"}), "t")
    with pytest.raises(
        BadInput, match=r"topology 't' needs the port Group, which runtime 'r' does not provide .*Board"
    ):
        check_fits(program, "r", frozenset({"Board"}), "t")
