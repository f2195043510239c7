"""`shoal federation local`: what becomes of it when its children fail. The children here are light clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

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

    async def _push(self, url: str, token_file: str, name: str) -> None:
        courier = Courier(name, read_token(token_file))
        async with await join(url, courier) as client:
            assert courier.welcome is not None
            courier.architecture = courier.welcome.architecture
            got = await client.pull()
            assert got.weights is not None
            await client.push(Update(got.weights + 0.5, base=got.version, steps=10))


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
    assert not is_finished(tmp_path / "run")
