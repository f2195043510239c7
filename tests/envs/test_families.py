"""EnvPool's families: one is imported where Gymnasium's entry point names it, all of them for any other question."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("envpool")

CODE = """
import json, sys
from shoal.envs import envpool as pool
from shoal.envs.source import find

def families():
    names = [n.removesuffix(".registration") for n in sys.modules if n.startswith("envpool.") and n.endswith(".registration")]
    return sorted(name for name in names if name != "envpool")

told = {"backend": find("LunarLander-v3").backend, "one": families(), "matplotlib": "matplotlib" in sys.modules}
told["two"] = [pool.has("CartPole-v1"), families()]
import envpool  # as anybody else would
told["foreign"] = envpool.make("Catch-v0", env_type="gymnasium", num_envs=1) is not None
told["all"] = [len(families()), len(envpool.list_all_envs()) == len(pool.ids()) > 1000, pool.has("Nothing-v0")]
print(json.dumps(told))
"""


def test_one_family_is_imported_and_the_others_when_they_are_asked_for() -> None:
    paths = f"import sys; sys.path[:] = {sys.path!r}\n"
    done = subprocess.run([sys.executable, "-c", paths + CODE], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["backend"] == "envpool" and told["one"] == ["envpool.box2d"] and not told["matplotlib"]
    assert told["two"] == [True, ["envpool.box2d", "envpool.classic_control"]]
    assert told["foreign"] and told["all"][0] > 10 and told["all"][1:] == [True, False]
