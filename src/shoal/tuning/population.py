"""A study whose trials train as lanes of a few compiled functions, for JAX-native environments.

Trials with equal shapes are lanes of one program (`lanes`). Settings that change shapes or code, such as `unroll` and `net.hidden`,
sort the trials into programs, one for each combination of their values. Ranges of whole numbers take a few values only, because
each would compile a program (`with_buckets`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from shoal.core.errors import BadInput
from shoal.experiment import Plan, nest, resolve
from shoal.launch.compose import make_blueprint
from shoal.process.device import settle_process
from shoal.runtimes.fused import Fused
from shoal.topologies.sequential import SequentialTopology
from shoal.tuning.lanes import VARIES, Lane, LaneProgram
from shoal.tuning.phases import Phase
from shoal.tuning.spaces import Real, Space, Whole, bucketed, written
from shoal.tuning.trainings import Training

PROGRAMS = 8  # about as many combinations of values from ranges


class Population:
    """The trainings of a study: lanes, sorted by shape into programs."""

    def __init__(self, env: str, phase: Phase) -> None:
        self._env, self._phase = env, phase
        self._programs: dict[bytes, LaneProgram] = {}

    def start(self, folder: Path, settings: Mapping[str, Any], *, go_on: bool) -> Training:
        given = nest(settings)
        algo = {name: value for name, value in given.get("algo", {}).items() if name not in VARIES}
        shape = {name: value for name, value in {**given, "algo": algo}.items() if name not in ("seed", "steps")}
        key = msgspec.json.encode(shape, order="deterministic")
        try:
            if key not in self._programs:
                self._programs[key] = LaneProgram(fused_plan(self._env, shape), self._phase)
            return self._programs[key].start(folder, given, go_on=go_on)
        except BadInput as error:
            return Refused(str(error))

    def wait(self, trainings: Sequence[Training], seconds: float) -> None:
        """Train all lanes for a few updates, one program after another."""
        lanes = [lane for lane in cast(Sequence[Lane], trainings) if lane.code is None]
        for program in dict.fromkeys(lane.program for lane in lanes):
            program.train([lane for lane in lanes if lane.program is program])


class Refused:
    """A training that cannot start: ended from the beginning, like a run that exits with 2."""

    code = 2

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def rows(self) -> list[dict[str, Any]]:
        return []

    def pause(self) -> None:
        return None

    def stop(self) -> None:
        return None

    def kill(self) -> None:
        return None


def fused_plan(env: str, settings: Mapping[str, Any]) -> Plan:
    """Resolve the run of a population. `BadInput` if `fused` does not support it."""
    settle_process()  # before the first computation
    given = nest(settings)
    for axis, only in (("runtime", "fused"), ("topology", "sequential")):
        name = given.get(axis, {}).get("name", only)
        if name != only:
            raise BadInput(f"--population needs --{axis} {only}, not {name!r}")
    plan = resolve(env, {**settings, "runtime": "fused"})
    blueprint = make_blueprint(plan, None, None)
    if blueprint.algorithm.replays:
        raise BadInput(f"--population has no replay, which {plan.settings.algo} needs: leave --population out")
    Fused(plan.runtime).start(SequentialTopology(plan.topology).program(blueprint), lambda: False)
    return plan


def with_buckets(space: Space) -> Space:
    """The space with a list of a few values for each range of whole numbers; lists stay as they are."""
    ranges = [name for name, domain in space.items() if isinstance(domain, Whole) and name not in VARIES]
    most = max(2, round(PROGRAMS ** (1 / len(ranges)))) if ranges else 0
    return {
        name: bucketed(domain, most) if isinstance(domain, Whole) and name in ranges else domain
        for name, domain in space.items()
    }


def check_space(space: Space) -> None:
    """Raise `BadInput` for a range of real numbers that the compiled function does not take as an argument: each value would need
    a program of its own."""
    for name, domain in space.items():
        if isinstance(domain, Real) and name not in VARIES:
            raise BadInput(
                f"--population: {name}={written(domain)} would compile a program for each trial; give a list of values,"
                f" or vary {', '.join(VARIES)}"
            )
