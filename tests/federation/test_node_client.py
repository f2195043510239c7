"""The client in another language, written from the documentation, takes part."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from parents import TOKEN, make_hub, serving

SCRIPT = Path(__file__).parents[2] / "examples" / "federation_client.mjs"


def node(*words: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("node")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("node is not installed")
        pytest.skip("node is not installed")
    version = int(
        subprocess.run([found, "--version"], text=True, capture_output=True, check=True).stdout[1:].split(".")[0]
    )
    flags = ["--experimental-websocket", "--no-warnings"] if version < 22 else ["--no-warnings"]
    return subprocess.run([found, *flags, str(SCRIPT), *words], text=True, capture_output=True, timeout=120)


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return str(path)


@pytest.mark.parametrize("rule", ["alpha_beta", "staleness"])
def test_it_joins_pulls_and_pushes(rule: str, token: str) -> None:
    hub = make_hub(1000, rule=rule, alpha=0.5 if rule == "alpha_beta" else 0.6)
    start = hub.state.weights
    with serving(hub) as url:
        done = node(url, token, "node-child", "4")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["version"] == 4 == said["sequence"] and said["run"] == "run-1"
    np.testing.assert_array_equal(np.array(said["weights"], np.float32), hub.state.weights)
    rate = {"alpha_beta": 0.5, "staleness": 0.6}[rule]
    np.testing.assert_allclose(hub.state.weights, start + 4 * 0.5 * rate, rtol=1e-4, atol=1e-4)
    child = hub.state.children["node-child"]
    assert (child.pushes, child.steps, child.episodes, child.present) == (4, 400, 4, False)
    assert not hub.guard.refused


def test_it_goes_on_where_it_was(token: str) -> None:
    hub = make_hub(10)
    with serving(hub) as url:
        assert json.loads(node(url, token, "n", "2").stdout)["sequence"] == 2
        assert json.loads(node(url, token, "n", "1").stdout)["sequence"] == 3


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("the wrong token altogether")
    with serving(make_hub()) as url:
        done = node(url, str(wrong), "n")
    assert done.returncode == 2 and done.stderr.strip() == "refused (token): no valid token for 'n'"
