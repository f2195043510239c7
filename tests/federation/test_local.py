"""`shoal federation local`: what becomes of it when its children fail. The children here are light clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from shoal.cli.main import main
from shoal.federation import local
from shoal.federation.client import join
from shoal.federation.courier import Courier, Update
from shoal.federation.token_files import read_token
from shoal.run.folder import read_json
from shoal.studies.finished import is_finished

RUN = ["--algo", "a2c", "--net.hidden", "4", "--eval-episodes", "3", "--eval-every", "0", "--quiet", "--no-report"]


class Fails:
    """A child that pushes once and fails."""

    code, reason = 1, "out of memory"

    def __init__(self, words: Sequence[str], *, slow: float = 1.0) -> None:
        asyncio.run(self._push(words[1], words[words.index("--token-file") + 1], words[words.index("--name") + 1]))

    def at_full_speed(self) -> None:
        """It was never slowed down."""

    def send(self, number: int) -> None:
        """It has ended."""

    def wait(self, seconds: float) -> int:
        return self.code

    async def _push(self, url: str, token_file: str, name: str) -> None:
        courier = Courier(name, read_token(token_file))
        async with await join(url, courier) as client:
            assert courier.welcome is not None
            courier.architecture = courier.welcome.architecture
            got = await client.pull()
            assert got.weights is not None
            await client.push(Update(got.weights + 0.5, base=got.version, steps=10))


class Pushes(Fails):
    """A child that pushes until the parent says stop."""

    code = 0
    started: ClassVar[list[tuple[str, ...]]] = []

    def __init__(self, words: Sequence[str], *, slow: float = 1.0) -> None:
        self.started.append((words[words.index("--name") + 1], Path(words[words.index("--out") + 1]).name, f"{slow:g}"))
        Path(words[words.index("--out") + 1]).mkdir(parents=True)
        super().__init__(words)


def test_a_local_federation_is_resumed_with_its_children(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent continues from its checkpoint; the same children join again, as slow as before, in folders of their own."""
    monkeypatch.setattr(local, "Command", Pushes)
    run, words = str(tmp_path / "run"), ["federation", "local"]
    asked = ["--children", "3", "--slow", "1,2", "--actors", "1", "--updates", "3"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "CartPole-v1", "--out", run, *asked, *RUN])
    assert ended.value.code == 0
    first = read_json(tmp_path / "run" / "summary.json")
    assert (first["ended"], first["updates"], first["children"]) == ("budget", 3, 3)
    begun = [("child-0", "child-0", "1"), ("child-1", "child-1", "2"), ("child-2", "child-2", "1")]
    assert Pushes.started == begun
    Pushes.started.clear()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--resume", run, "--updates", "6", "--quiet", "--no-report"])
    assert ended.value.code == 0
    second = read_json(tmp_path / "run" / "summary.json")
    assert (second["ended"], second["updates"], second["children"]) == ("budget", 6, 3)
    assert second["exchanges"] == 6 and second["version"] > first["version"], "the same children, each push once"
    assert Pushes.started == [(name, f"{name}-2", slow) for name, _, slow in begun]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume", "nowhere"], "'nowhere' has no local.json"),
        (["--resume", "broken"], "local.json: "),
        (["--resume", "slow"], "--slow has 2 factors for 1 children"),
        (["--resume", "fits", "--slow", "2", "--runtime", "processes"], "would keep their speed"),
        (["--resume", "fits"], "'fits' is not a"),
    ],
)
def test_what_cannot_be_resumed(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, document in {
        "broken": {"children": "many"},
        "slow": {"children": 1, "slow": "1,2", "passed": {}},
        "fits": {"children": 2, "slow": "", "passed": {}},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "local.json").write_text(json.dumps(document))
    with pytest.raises(SystemExit) as ended:
        main(["federation", "local", *words])
    err = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and said in err and err.count("\n") == 0, err


def test_the_parent_evaluates_what_lost_children_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "Command", Fails)
    with pytest.raises(SystemExit) as ended:
        main(["federation", "local", "CartPole-v1", "--out", str(tmp_path / "run"), "--json", *RUN])
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    last = err.strip().splitlines()[-1]
    assert last.startswith("shoal: all children were lost (child-0, child-1) after 80 steps"), err
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["ended"] == "children" and summary["eval_mean"] is not None
    assert json.loads(out)["eval_mean"] == summary["eval_mean"], "the JSON line is printed nevertheless"
    assert f"shoal federation local --resume {tmp_path / 'run'}" in last
    assert not is_finished(tmp_path / "run")
