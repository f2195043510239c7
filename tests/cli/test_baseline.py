"""`shoal eval --baseline`: figures on the surrogate and on the plant; what has no baseline is refused by one line."""

from __future__ import annotations

import json

import pytest

from shoal.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["eval", *words])
    out, err = capsys.readouterr()
    return end.value.code or 0, out, err


def test_a_regulator_is_shown_on_the_surrogate_and_on_the_plant(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "--baseline", "pi-tuned", "shoal/Booster-v0", "--episodes", "20", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["env"] for line in lines] == ["shoal/Booster-v0", "shoal/BoosterPlant-v0"]
    assert all(-25 < line["eval_mean"] < -5 and line["eval_episodes"] == 20 for line in lines)
    assert "(surrogate): mean" in err
    assert "(synthetic plant): mean" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--baseline", "pid", "shoal/Booster-v0"), "--baseline is 'pid'; it must be one of pi, pi-tuned"),
        (("--baseline", "pi", "CartPole-v1"), "'CartPole-v1' has no baseline"),
        (("--baseline", "pi"), "give one environment"),
        (("--baseline", "pi", "shoal/Booster-v0", "--sample"), "--sample does not go with --baseline"),
    ],
)
def test_what_has_no_baseline_is_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    code, _, err = call(capsys, *words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
