"""The watcher of environment calls, on a clock of its own."""

from __future__ import annotations

from shoal.runtimes.watch import START_TIMEOUT, MemoryPulse, Watch, pulses


class World:
    def __init__(self, limit: float = 2.0) -> None:
        self.now = 100.0
        views = pulses(3).empty()
        self.pulse, self.watch = MemoryPulse(views, 1), Watch(views, limit, lambda: self.now)

    def after(self, seconds: float) -> str | None:
        self.now += seconds
        late = self.watch.overdue(1)
        return None if late is None else str(late)


def built(limit: float = 2.0) -> World:
    world = World(limit)
    world.pulse.begin()
    world.pulse.ready()
    return world


def test_a_step_that_does_not_return_is_overdue() -> None:
    world = built()
    world.pulse.env(True)
    assert world.after(0) is None and world.after(1.9) is None
    assert world.after(0.2) == "a step of its environment did not return within 2 s (--runtime.step-timeout)"


def test_between_two_steps_nothing_is() -> None:
    world = built()
    for _ in range(3):
        world.pulse.env(True)
        assert world.after(1.5) is None
        world.pulse.env(False)
        assert world.after(0) is None and world.after(1000) is None


def test_steps_that_return_are_never_added_up() -> None:
    world = built()
    for _ in range(5):
        world.pulse.env(True)
        assert world.after(1.5) is None
        world.pulse.env(False)


def test_a_watcher_that_did_not_look_for_long_takes_nobody_to_hang() -> None:
    world = built()
    world.pulse.env(True)
    assert world.after(1000) is None and world.after(1.9) is None
    assert world.after(0.2) is not None


def test_making_environments_and_imports_have_the_longer_limit_and_the_rest_of_building_has_none() -> None:
    world = World()
    assert world.after(0) is None and world.after(START_TIMEOUT) is None
    assert world.after(1) == f"it did not start within {START_TIMEOUT:g} s"
    world.pulse.begin()
    assert world.after(0) is None and world.after(10 * START_TIMEOUT) is None
    world.pulse.env(True)
    assert world.after(0) is None and world.after(START_TIMEOUT) is None
    assert world.after(1) == f"its environments were not made within {START_TIMEOUT:g} s"
    assert World(500.0).after(400) is None


def test_a_successor_begins_anew() -> None:
    world = built()
    world.pulse.env(True)
    world.after(0)
    assert world.after(3) is not None
    world.watch.restart(1)
    assert world.after(0) is None and world.after(START_TIMEOUT - 1) is None
