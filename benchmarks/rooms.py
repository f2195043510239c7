"""One virtual environment per peer, under `benchmarks/.venvs`, and commands that end in a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
VENVS = HERE / ".venvs"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """`needs` is installed with its dependencies; `over` afterwards without, where a peer pins an older one."""

    title: str
    script: str
    needs: tuple[str, ...]
    over: tuple[str, ...] = ()


# EnvPool without the 600 MB of meshes that its MuJoCo environments need, for peers that can be given its LunarLander.
ENVPOOL = ("dm-env", "optree", "pillow", "packaging", "matplotlib", "glfw", "types-protobuf")
ENVPOOL_ALONE = ("envpool==1.2.5", "envpool-assets==0.3.0")

# The CPU build of torch comes from wherever pip is configured to find it. Box2D's wheel is named by itself, because the
# extra of older Gymnasiums asks for a package that has to be compiled.
PEERS = {
    "sb3": Peer(
        title="Stable-Baselines3",
        script="sb3_ppo.py",
        needs=("torch==2.13.0", "stable-baselines3==2.9.*", "gymnasium==1.4.*", "Box2D==2.3.10", "pygame-ce", *ENVPOOL),
        over=ENVPOOL_ALONE,
    ),
    "sbx": Peer(
        title="SBX",
        script="sbx_ppo.py",
        needs=(
            "torch==2.13.0",
            "sbx-rl==0.28.*",
            "gymnasium==1.4.*",
            "Box2D==2.3.10",
            "pygame-ce",
            "mujoco>=3.1.6",
            "imageio",
            "packaging",
        ),
    ),
    "rllib": Peer(
        title="RLlib",
        script="rllib_ppo.py",
        needs=("torch==2.13.0", "ray[rllib]==2.60.*", "Box2D==2.3.10", "pygame-ce"),
    ),
    "sample_factory": Peer(
        title="Sample Factory",
        script="sample_factory_appo.py",
        needs=("torch==2.13.0", "sample-factory==2.1.1", "Box2D==2.3.10", "pygame-ce", "ale-py==0.11.*", *ENVPOOL),
        # It asks for Gymnasium 0.29, which has no LunarLander-v3; it runs on this one.
        over=("gymnasium==1.2.2", *ENVPOOL_ALONE),
    ),
    "cleanrl": Peer(
        title="CleanRL's ppo.py",
        script="cleanrl_ppo.py",
        needs=("torch==2.13.0", "gymnasium==1.4.*", "Box2D==2.3.10", "pygame-ce"),
    ),
    "rlox": Peer(
        title="rlox",
        script="rlox_ppo.py",
        needs=("torch==2.13.0", "rlox==1.2.0", "gymnasium==1.4.*", "Box2D==2.3.10", "pygame-ce"),
    ),
    # What a script in the manner of CleanRL's `ppo_atari_envpool.py` needs.
    "cleanrl_atari": Peer(
        title="CleanRL's ppo_atari_envpool.py",
        script="cleanrl_pong.py",
        needs=("torch==2.13.0", "gymnasium==1.4.*", *ENVPOOL),
        over=ENVPOOL_ALONE,
    ),
}


class Failed(Exception):
    """A command did not end in a result. The message is the end of its output."""


def run_json(command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object on the last line of a command's standard output, plus `command_s`, its whole duration.

    The command ends with this process if that is interrupted or asked to end by SIGTERM.
    """
    began = time.monotonic()
    environment = {**os.environ, "BENCH_STARTED": repr(began), **(env or {})}
    # A session of its own, so that a timeout ends the peer's workers with it.
    with _signals_raise():
        process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"no result after {timeout:.0f} s") from None
            raise
    took = time.monotonic() - began
    if process.returncode != 0:
        said = [line for line in (out + err).splitlines() if line.strip()]
        raise Failed(f"exit code {process.returncode}: {said[-1][:300] if said else 'silent'}")
    lines = out.strip().splitlines()
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        raise Failed(f"its last line is no JSON: {lines[-1][:200] if lines else 'no output'}") from None
    return {**result, "command_s": took}


def pinned(core: int | None) -> tuple[str, ...]:
    """The beginning of a command that may use one core alone; XLA and torch make as many threads as they have cores."""
    return () if core is None else ("taskset", "-c", str(core))


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """While entered, SIGTERM and SIGINT raise SystemExit. A shell starts background jobs with SIGINT ignored."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT) if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pip(python: Path, *words: str) -> None:
    done = subprocess.run([python, "-m", "pip", "install", "-qq", *words], text=True, capture_output=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
        raise Failed(f"cannot be installed: {errors[-1][:300] if errors else 'pip failed'}")


def ensure(name: str) -> Path:
    """The Python of a peer's virtual environment, which is made when its list of packages changed."""
    peer, folder = PEERS[name], VENVS / name
    python, stamp = folder / "bin" / "python", folder / ".packages"
    wanted = "\n".join((*peer.needs, "then", *peer.over))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {peer.title} into {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    _pip(python, *peer.needs)
    if peer.over:
        _pip(python, "--no-deps", *peer.over)
    stamp.write_text(wanted)
    return python


def run_peer(
    name: str,
    *,
    seconds: float,
    until_return: float | None = None,
    seed: int = 0,
    words: Sequence[str] = (),
    script: str | None = None,
    core: int | None = None,
) -> dict[str, Any]:
    """One measurement of a peer, with further `words` for its script (or another one), on one `core` if that is given; one that
    fails says so in its row."""
    peer = PEERS[name]
    try:
        file = str(HERE / "peers" / (script or peer.script))
        command = [*pinned(core), str(ensure(name)), file, "--seconds", str(seconds), "--seed", str(seed)]
        if until_return is not None:
            command += ["--until-return", str(until_return)]
        return {"who": peer.title, **run_json([*command, *words], timeout=seconds * 3 + 180)}
    except Failed as failure:
        return {"who": peer.title, "error": str(failure)}
