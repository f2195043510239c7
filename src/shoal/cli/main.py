"""`shoal COMMAND ...`: finds the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

STARTED = time.monotonic()

COMMANDS = {
    "train": "train an agent: shoal train LunarLander-v3",
    "pause": "ask a training to checkpoint and end, to be resumed later: shoal pause runs/…",
    "stop": "ask a training to checkpoint and end: shoal stop runs/…",
    "eval": "evaluate a run's policy on fresh episodes: shoal eval runs/… --episodes 500",
    "play": "watch a run's policy: shoal play runs/… --video out.mp4",
    "report": "write a run's report.html",
    "compare": "compare a grid of trainings: shoal compare CartPole-v1 --topology sync,shared_params --seeds 3",
    "optimize": "learn a tuning law, conditions in, minimiser out: shoal optimize ackley --shift 0.3",
    "reproduce": "repeat a published experiment and compare the numbers: shoal reproduce lto-ackley --quick",
    "tune": "search for the best settings: shoal tune CartPole-v1 --space learning_rate=log(1e-4,1e-1) --trials 16",
    "parent": "serve a model that children on other machines train together: shoal parent LunarLander-v3 --algo a2c",
    "join": "train on this machine as a child of a parent: shoal join ws://127.0.0.1:7777 --token-file T",
    "federation": "status, local runs, certificates: shoal federation local LunarLander-v3 --children 2 --until-return 200",
    "envs": "list environments: shoal envs [PATTERN]",
    "doctor": "examine an environment for mistakes: shoal doctor mypkg.envs:MyEnv",
    "algos": "list algorithms and their settings",
    "topologies": "list topologies: how actors and learners are connected",
    "runtimes": "list runtimes: where the roles run",
}

HELP = f"""Shoal: distributed deep reinforcement learning. One algorithm, every topology.

usage: shoal COMMAND ... [--help]

{chr(10).join(f"  {name:<11} {about}" for name, about in COMMANDS.items())}

  --version   the version
  --help      this text; `shoal COMMAND --help` explains a command

Start with:  shoal train LunarLander-v3 --until-return 200
"""


def main(words: list[str] | None = None) -> None:
    """The entry of the `shoal` command. Exit codes: 0 done or stopped on request, 2 bad input, 1 failure.

    With `words` it raises SystemExit; without, it takes the process's own and ends the process.
    """
    if words is not None:
        _run(words)
    code = 1
    try:
        _run(sys.argv[1:])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    # Skip the interpreter's own shutdown: native threads that still compile or step have crashed and hung in it.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader of the pipe is gone
            code = code or 1
    ranks = sys.modules.get("shoal.runtimes.ranks")
    if ranks is not None and ranks.joined():
        ranks.leave(code)
    os._exit(code)


def _run(words: list[str]) -> NoReturn:
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        raise SystemExit(0)
    if words[0] == "--version":
        from shoal import __version__

        print(f"shoal {__version__}")
        raise SystemExit(0)
    from shoal.core.errors import BadInput, ShoalError, nearest
    from shoal.process.device import collect_rarely
    from shoal.process.mpi_environment import follows
    from shoal.process.signals import leaving_at_once

    collect_rarely()
    try:
        if words[0] not in COMMANDS:
            raise BadInput(f"unknown command {words[0]!r}.{nearest(words[0], COMMANDS)} See shoal --help.")
        # Stopping a training is no failure, even while it still imports; once it runs, it handles signals itself.
        with leaving_at_once() if words[0] in ("train", "parent", "join", "federation") else contextlib.nullcontext():
            command = importlib.import_module(f"shoal.cli.{words[0]}")
            code = command.run(words[1:])
    except ShoalError as error:
        if not follows():  # only the first of several ranks prints it
            print(f"shoal: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("shoal: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"shoal: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    raise SystemExit(code or 0)


def started_at() -> float:
    """When this process began, on the monotonic clock: a user also waits for the interpreter's own start."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # since boot: field 22 of proc(5), counted after the name in brackets
        since_boot = ticks / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux
        return STARTED
