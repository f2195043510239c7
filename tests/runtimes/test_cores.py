"""Which core a role stays on, with one run on a machine and with several."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from shoal.runtimes.cores import Cores, Held, claim


def machine() -> Callable[[int], Held | None]:
    """Claims of a machine of its own."""
    taken: set[int] = set()

    class Fake:
        def __init__(self, core: int) -> None:
            self.core = core
            taken.add(core)

        def close(self) -> None:
            taken.discard(self.core)

    return lambda core: None if core in taken else Fake(core)


def seats(cores: Cores, actors: int) -> list[int | None]:
    return [cores.seat(actor) for actor in range(actors)]


def test_runs_of_one_actor_each_are_on_cores_of_their_own() -> None:
    claims = machine()
    runs = [Cores([0, 1], claims) for _ in range(3)]
    assert [seats(run, 1) for run in runs] == [[0], [1], [None]], "the third is left to the scheduler"
    runs[0].close()
    assert seats(Cores([0, 1], claims), 1) == [0]


def test_a_run_that_fills_the_machine_has_a_core_for_each_actor_and_shares_them_beyond() -> None:
    run = Cores([2, 5], machine())
    assert seats(run, 4) == [2, 5, 2, 5]


def test_a_second_run_of_that_size_is_left_to_the_scheduler() -> None:
    claims = machine()
    first, second = Cores([0, 1], claims), Cores([0, 1], claims)
    assert seats(first, 2) == [0, 1] and seats(second, 2) == [None, None]


def test_a_run_that_got_some_cores_pins_no_more_than_those() -> None:
    claims = machine()
    one, other = Cores([0, 1, 2], claims), Cores([0, 1, 2], claims)
    assert seats(one, 1) == [0] and seats(other, 3) == [1, 2, None]


def test_no_wish_and_no_choice_are_no_pin() -> None:
    assert Cores([0, 1], machine()).seat(None) is None and Cores([3], machine()).seat(0) is None


FAR = 100_000 + os.getpid()  # a core that no machine has


def test_the_kernel_gives_back_what_a_killed_run_held() -> None:
    code = f"from shoal.runtimes.cores import claim\nheld = claim({FAR})\nprint(held is not None, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"True\n"
        assert claim(FAR) is None
        other.kill()
        other.wait()
    held = claim(FAR)
    assert held is not None
    held.close()
