"""What a federation costs and what it gains: exchanges, a crowd of children, lost datagrams, a child's memory, learning."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rooms import HERE, Failed, run_json
from shoal_runs import PYTHON, SHOAL, evaluate, folder
from targets import Result, Target, median, ratio

LUNAR = "LunarLander-v3"
SCRIPT = str(HERE / "federation.py")
# Runs `shoal WORDS ...` and leaves the peak of its memory in kB in a file.
PEAK = """
import atexit, os, pathlib, runpy, sys
def keep(path=pathlib.Path(sys.argv[1])):
    path.write_text(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
def leave(code, leave=os._exit):
    keep()
    leave(code)
atexit.register(keep)
os._exit = leave
sys.argv = ["shoal", *sys.argv[2:]]
runpy.run_module("shoal", run_name="__main__", alter_sys=True)
"""


def federation_exchange(quick: bool) -> Result:
    """A push and its answer on loopback, beside a raw `websockets` echo of the same bytes in the same fragments: 10 thousand
    weights in three encodings, and 10 million (quick: 1 million)."""
    large = 1_000_000 if quick else 10_000_000
    small = run_json([PYTHON, SCRIPT, "exchange", "--repeats", "50" if quick else "1000"], timeout=300)
    words = ["--size", str(large), "--repeats", "5" if quick else "15", "--encodings", "float32,int8"]
    big = run_json([PYTHON, SCRIPT, "exchange", *words], timeout=900)
    rows = []
    for found, who in ((small, ("echo", "float32", "float16", "int8")), (big, ("echo", "float32", "int8"))):
        for name in who:
            up, down = found.get(f"{name} bytes", (None, None))
            rows.append(
                {
                    "who": "websockets" if name == "echo" else "Shoal",
                    "case": f"{found['size']:,} weights, {name}",
                    "exchange_ms_p50": found[name]["ms_p50"],
                    "exchange_ms_p99": found[name]["ms_p99"],
                    "bytes_up": up,
                    "bytes_down": down,
                }
            )
    fewer = sum(big["float32 bytes"]) / sum(big["int8 bytes"])
    targets = [
        Target("ms of an exchange of 10,000 weights, median", small["float32"]["ms_p50"], "<= 2"),
        Target(f"speed of an echo at {large:,} weights", big["float32 speed of echo"], ">= 0.6"),
        Target("times fewer bytes with int8", fewer, ">= 3.9"),
    ]
    return Result(rows, targets)


def federation_crowd(quick: bool) -> Result:
    """Light clients in one process join one parent and exchange 10 thousand weights: 1,000 (quick: 100). Each pushes once every
    5 s, evenly spread. The honest child is a process of its own that pushes every 20 ms: its median exchange beside the pushing
    crowd is judged against its median alone, before the crowd has come. The crowd must keep its rate."""
    children, period = (100, 1.0) if quick else (1000, 5.0)
    found = run_json([PYTHON, SCRIPT, "crowd", "--children", str(children), "--period", str(period)], timeout=300)
    before, peak = found["parent_mb"]
    joined, buffers = found["connected_mb"] - before, found["buffers_mb"]
    asked, kept = children / period, found["paced_exchanges_per_s"]
    cases = {
        "honest alone": "one child alone, a push every 20 ms",
        "honest beside connected children": f"the same beside {children} connected children that do nothing",
        "honest beside paced children": f"the same beside {children} children that push every {period:g} s each"
        f" ({kept:g} exchanges/s of {asked:g})",
        "honest beside pushing children": f"the same while all {children} push at once, again and again"
        f" ({found['exchanges_per_s']:,} exchanges/s)",
    }
    rows = [
        {
            "who": "Shoal",
            "case": case,
            "exchange_ms_p50": found[name]["ms_p50"],
            "exchange_ms_p99": found[name]["ms_p99"],
        }
        for name, case in cases.items()
    ]
    alone, beside = found["honest alone"]["ms_p50"], found["honest beside paced children"]["ms_p50"]
    targets = [
        Target(f"seconds until {children} children are connected", found["connected_s"], "<= 15"),
        Target(f"MB that the parent grew by until {children} children were connected", joined, "<= 100"),
        Target(f"MB at its peak, beyond {buffers} MB of pushes and answers", peak - before - buffers, "<= 100"),
        Target(f"share of {asked:g} exchanges/s that the crowd makes", kept / asked, ">= 0.95"),
        Target("times an honest child's median exchange takes beside that crowd", ratio(beside, alone), "<= 2"),
    ]
    return Result(rows, targets)


def federation_child(quick: bool) -> Result:
    """A child of one actor on LunarLander-v3, tuned A2C: peak memory and seconds, with an empty cache of compiled code and
    with a filled one."""
    words = (LUNAR, "--algo", "a2c", "--updates", "20", "--eval-every", "0", "--eval-episodes", "0")
    own = ("--actors", "1", "--topology", "shared_params", "--runtime", "threads")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for number in range(2 if quick else 6):
            case = "first start" if number == 0 else f"start {number + 1}"
            peak, cache = Path(place) / "peak", {"SHOAL_CACHE": str(Path(place) / "cache")}
            with Served(*words) as parent:
                began = time.monotonic()
                child = parent.child("pi", *own, env=cache, before=(PYTHON, "-c", PEAK, str(peak)))
                child.wait(120)
                took = time.monotonic() - began
            memory = int(peak.read_text()) / 1024
            rows.append({"who": "Shoal", "case": case, "peak_mb": round(memory), "command_s": took})
    warm = rows[1:]
    targets = [
        Target("peak MB of a child whose code is compiled", max(row["peak_mb"] for row in warm), "<= 350"),
        Target("peak MB of its first start", rows[0]["peak_mb"], "<= 350"),
        Target("seconds of a whole warm child, median", median([row["command_s"] for row in warm], 1), "<= 4"),
    ]
    return Result(rows, targets)


def federation_datagrams(quick: bool) -> Result:
    """CartPole-v1, A2C, two children: WebSockets, and UDP through a relay that loses 0, 1 and 10 % of the datagrams."""
    rows, scores = [], {}
    for seed in range(1 if quick else 5):
        for loss in (None, 0.0, 0.01, 0.1):
            case = "websocket" if loss is None else f"udp, {loss:.0%} lost"
            row = _lossy(loss, 20_000 if quick else 400_000, seed) | {"case": f"{case}, seed {seed}"}
            rows.append(row)
            scores.setdefault(case, []).append(row.get("eval_mean"))
    reference = median(scores["websocket"], 1)
    targets = [
        Target(f"greedy return with {case}, of that with websocket", ratio(median(found, 1), reference), ">= 0.9")
        for case, found in scores.items()
        if case != "websocket"
    ]
    return Result(rows, targets)


def federation_solve(quick: bool) -> Result:
    """`shoal federation local LunarLander-v3 --children 2 --until-return 200`: 100 greedy episodes in Gymnasium's environment."""
    rows = []
    for seed in range(1 if quick else 10):
        size = ("--steps", "20000", "--eval-episodes", "5") if quick else ()
        row = _local(
            LUNAR, "--children", "2", "--until-return", "200", "--seed", str(seed), *size, episodes=10 if quick else 100
        )
        rows.append(row | {"case": f"seed {seed}"})
    above = sum(row.get("eval_mean") is not None and row["eval_mean"] > 200 for row in rows)
    return Result(rows, [Target("share of the runs that end above 200", above / len(rows), ">= 1")])


def federation_speedup(quick: bool) -> Result:
    """LunarLander-v3, A2C on shared weights, alpha .9 and beta .5, 10 seeds: seconds from the first push until the parent's weights
    reach 200 greedily three times in a row, with two children of one core each and with one child of one core.

    Both arms pay alike. A child of either arm has one core (cpu affinity) and the tuned schedule of 1.5 million steps, its whole
    budget. The parent runs on the cores of its children and on no other. It keeps its weights every 100 updates a child, which
    is about the same number of seconds in both arms, and evaluates them only after the training (25 episodes each), so that no
    evaluation takes a core from a child. The time is that of the third of the weights in a row; a seed that never gets there
    counts as infinitely late. On fewer than two cores nothing is measured."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise Failed("two children of one core each need two cores")
    budget, every = (30_000, 10) if quick else (1_500_000, 100)
    rows, times = [], {1: [], 2: []}
    for seed in range(1 if quick else 10):
        for count in (1, 2):
            words = [LUNAR, "--algo", "a2c", "--topology", "shared_params", "--alpha", "0.9", "--beta", "0.5"]
            words += ["--eval-every", "0", "--eval-episodes", "5", "--path-every", str(every * count)]
            words += ["--expect", str(count), "--steps", str(budget * count), "--schedule-steps", str(budget)]
            with Served(*words, "--seed", str(seed), cores=cores[:count]) as parent:
                for number in range(count):
                    own = ("--runtime", "threads", "--actors", "1")
                    parent.child(f"child-{number}", *own, core=cores[number])
                row = parent.summary(1800)
                path = parent.path()
            solved = sustained(path, 200.0)
            case = f"{count} child{'ren' * (count > 1)}, seed {seed}, {len(path)} evaluations"
            rows.append(row | {"case": case, "solved_at_s": solved})
            times[count].append(solved)
    one, two = (median(times[count], 1) for count in (1, 2))
    each = [b / a for a, b in zip(times[1], times[2], strict=True) if a is not None and b is not None]
    said = ", ".join(f"{value:.2f}" for value in each) or "none"
    rows.append({"who": "Shoal", "case": f"ratio of each seed that both solve: {said}"})
    return Result(rows, [Target("seconds of two children, of those of one, medians", ratio(two, one), "<= 0.75")])


def sustained(path: Sequence[tuple[float, float]], goal: float, in_a_row: int = 3) -> float | None:
    """Seconds at which a path of (seconds, return) has reached the goal so many times in a row; None if never."""
    reached = 0
    for seconds, ret in path:
        reached = reached + 1 if ret >= goal else 0
        if reached == in_a_row:
            return seconds
    return None


class Served:
    """`shoal parent ...` on a free port, on these cores if given, and its children; all have ended when the block ends."""

    def __init__(self, *words: str, port: int = 0, cores: Sequence[int] = ()) -> None:
        self._out, self._words, self._port = folder(), words, port
        self._pinned = ("taskset", "-c", ",".join(map(str, cores))) if cores else ()
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Served:
        bind = ("--bind", f"127.0.0.1:{self._port}", "--out", str(self._out), "--quiet", "--json", "--no-report")
        self._parent = subprocess.Popen(
            [*self._pinned, SHOAL, "parent", *self._words, *bind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._parent.stderr is not None
        said = ""
        for said in self._parent.stderr:
            if said.startswith("join with:"):
                self.url = said.split()[4]
                return self
        raise Failed(f"no parent: {said.strip()}")

    def __exit__(self, *_: object) -> None:
        for process in (self._parent, *self._children):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (self._parent, *self._children):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._out.parent, ignore_errors=True)

    def child(
        self,
        name: str,
        *words: str,
        url: str = "",
        core: int | None = None,
        env: dict[str, str] | None = None,
        before: Sequence[str] = (SHOAL,),
    ) -> subprocess.Popen[bytes]:
        """Start a child, on one core if it is given."""
        pinned = ("taskset", "-c", str(core)) if core is not None else ()
        token, out = str(self._out / "token"), str(self._out.parent / name)
        command = [*pinned, *before, "join", url or self.url, "--token-file", token, "--name", name, "--out", out]
        process = subprocess.Popen(
            [*command, "--quiet", *words],
            env={**os.environ, **(env or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._children.append(process)
        return process

    def summary(self, timeout: float) -> dict[str, Any]:
        """What the parent says at its end; one that fails says so in its row."""
        try:
            out, _ = self._parent.communicate(timeout=timeout)
            return {"who": "Shoal", **json.loads(out.strip().splitlines()[-1])}
        except (subprocess.TimeoutExpired, json.JSONDecodeError, IndexError) as error:
            return {"who": "Shoal", "error": f"{type(error).__name__} of the parent"}

    def path(self) -> list[tuple[float, float]]:
        """(seconds, return) of the weights that the parent kept on its way, once it has ended."""
        file = self._out / "metrics.jsonl"
        lines = map(json.loads, file.read_text().splitlines() if file.is_file() else ())
        return [(line["path/seconds"], line["path/return"]) for line in lines if "path/return" in line]


def _lossy(loss: float | None, steps: int, seed: int) -> dict[str, Any]:
    transport = () if loss is None else ("--transport", "udp")
    words = ("CartPole-v1", "--algo", "a2c", "--steps", str(steps), "--expect", "2", "--seed", str(seed))
    relay: subprocess.Popen[bytes] | None = None
    with Served(*words, *transport, "--eval-every", "0", "--eval-episodes", "100") as parent:
        url = parent.url
        try:
            if loss is not None:
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    port = free.getsockname()[1]
                script = str(HERE / "federation_relay.py")
                relay = subprocess.Popen([PYTHON, script, str(port), url.rpartition(":")[2], "--loss", str(loss)])
                url = f"ws://127.0.0.1:{port}"
                _wait_for(port)
            for number in range(2):
                parent.child(f"child-{number}", "--actors", "1", url=url)
            return parent.summary(600)
        finally:
            if relay is not None:
                relay.terminate()
                relay.wait()


def _wait_for(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.05)
    raise Failed(f"nothing listens on port {port}")


def _local(*words: str, episodes: int) -> dict[str, Any]:
    """`shoal federation local ...`, and the greedy return of its weights in Gymnasium's own environment."""
    out = folder()
    try:
        row = run_json(
            [SHOAL, "federation", "local", *words, "--json", "--quiet", "--no-report", "--out", str(out)], 3600
        )
        judged = evaluate(str(out), episodes)
        means = {name: judged[name] for name in ("eval_mean", "eval_sd", "error") if name in judged}
        return {"who": "Shoal", **row, **means, "eval_episodes": episodes}
    except Failed as failure:
        return {"who": "Shoal", "error": str(failure)}
    finally:
        shutil.rmtree(out.parent, ignore_errors=True)
