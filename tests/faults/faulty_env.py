"""An environment that breaks on order. The order is in environment variables, so that it reaches every process of a run.

FAULT_KIND    raise, hang, lock, nan, inf, segv, kill; nothing breaks without it
FAULT_AT      the step of an environment's life at which it breaks, and every so many steps again (30)
FAULT_TIMES   how often in the whole run (1); each time leaves a file in FAULT_FOLDER
FAULT_FOLDER  where those files are, and one for each environment that was made
STEP_SECONDS  how long a step takes
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

LENGTH = 20  # steps of an episode: a whole one has this return


class Faulty(gymnasium.Env[np.ndarray, int]):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._kind = os.environ.get("FAULT_KIND", "")
        self._at = int(os.environ.get("FAULT_AT", "30"))
        self._seconds = float(os.environ.get("STEP_SECONDS", "0"))
        self._life = 0
        folder = os.environ.get("FAULT_FOLDER")
        if folder:
            tempfile.mkstemp(prefix="made-", dir=folder)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._life += 1
        time.sleep(self._seconds)
        obs, reward = self._obs(), 1.0
        if self._kind and self._life % self._at == 0 and _may_break():
            if self._kind == "raise":
                raise RuntimeError("the dice fell off the table")
            if self._kind == "hang":
                time.sleep(10_000)
            elif self._kind == "lock":
                ctypes.PyDLL(None).sleep(10_000)  # keeps Python's lock, as faulty native code does
            elif self._kind == "nan":
                obs[1] = np.nan
            elif self._kind == "inf":
                reward = float("inf")
            elif self._kind == "segv":
                ctypes.string_at(0)
            elif self._kind == "kill":
                os.kill(os.getpid(), 9)
        return obs, reward, self._t >= LENGTH, False, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Unfilmable(Faulty):
    """Its renderer ends the process that calls it, as some of MuJoCo's do without a display."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        os._exit(3)


class WithServer(Faulty):
    """It starts a process of its own, as a wrapped simulator does, and ends it in `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._server = subprocess.Popen(["sleep", "10000"])

    def close(self) -> None:
        self._server.kill()
        self._server.wait()


class Sticky(Faulty):
    """Once it has been stepped, closing it fails."""

    closed: ClassVar[int] = 0  # how often that was tried in this process

    def close(self) -> None:
        if self._life:
            Sticky.closed += 1
            raise OSError("sticky")


class Tidy(Faulty):
    """Once it has been stepped, leaves a file in the folder CLOSED when it is closed, like one that returns a licence."""

    def close(self) -> None:
        if self._life:
            (Path(os.environ["CLOSED"]) / f"{os.getpid()}-{id(self)}").touch()


class Littering(Tidy):
    """Spends its steps in a finaliser, where Python prints and drops every exception."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        SlowToForget()
        return super().step(action)


class SlowToForget:
    def __del__(self) -> None:
        time.sleep(0.05)


class Dawdling(Faulty):
    """Once it has been stepped, never finishes closing."""

    def close(self) -> None:
        while self._life:
            time.sleep(1)


class Cursed(Faulty):
    """Ends its process when it is reset with the seed CURSED, as a level does that the simulator cannot load."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if seed == int(os.environ["CURSED"]):
            os._exit(1)
        return super().reset(seed=seed)


class Endless(Faulty):
    """No episode of it ever ends."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class NoConstruction(Faulty):
    def __init__(self) -> None:
        raise OSError("no simulator licence")


class NoReset(Faulty):
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        raise ValueError("no level file")


class OddSpace(Faulty):
    observation_space = gymnasium.spaces.Text(5)


def _may_break() -> bool:
    for number in range(int(os.environ.get("FAULT_TIMES", "1"))):
        try:
            os.close(os.open(os.path.join(os.environ["FAULT_FOLDER"], f"broke-{number}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False
