"""The driver of a study: assigns trials to worker slots, watches them, reports their phases and follows the scheduler.

A slot holds one trial at a time, with concurrent runs for its seeds. A trial that continues is not interrupted; one that pauses
or ends first writes a checkpoint, and its slot is free when its processes have ended. If a process is killed, or sends no metrics
for longer than its lease, its task returns to the queue, and the run continues from its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from optuna.samplers import BaseSampler

from shoal.tuning.book import Book
from shoal.tuning.config import Plan
from shoal.tuning.events import BASELINE, Event, Lost, Reported, Started, Tasked, Tested, Trial
from shoal.tuning.race import still_to_test
from shoal.tuning.replay import rebuilt
from shoal.tuning.samplers import SAMPLERS, Drawn, make_sampler
from shoal.tuning.spaces import explore, uniform
from shoal.tuning.trainings import SeedRun, Trainings, copy_run

LOOK = 0.1  # seconds between two checks of the runs
LOSSES = 3  # losses that a trial survives; one more makes it fail
PATIENCE = 60.0  # seconds for runs to checkpoint and end when the study is stopped


@dataclasses.dataclass
class Slot:
    """A worker: its trial with its runs, and what to do once their processes have ended."""

    number: int
    trial: int = -1
    end: int = 0  # phase at which the task ends
    seed: int | None = None  # in the confirmation
    runs: list[SeedRun] = dataclasses.field(default_factory=list)
    then: Literal["", "free", "report", "lost"] = ""  # "": it trains
    why: str = ""  # reason of a loss or a failure
    metrics_at: float = 0.0  # monotonic time of the last metrics

    @property
    def busy(self) -> bool:
        return bool(self.runs)


class Runner:
    """Runs a study from the current state of its book to its end. `tell` receives every event."""

    def __init__(
        self, plan: Plan, book: Book, folder: Path, trainings: Trainings, tell: Callable[[Event], None] = lambda e: None
    ) -> None:
        self.plan, self.book, self.folder = plan, book, folder
        self._trainings, self._tell = trainings, tell
        self.slots = [Slot(number) for number in range(plan.config.workers)]
        self.scheduler = rebuilt(plan, book.course)
        self._waiting = deque(trial.number for trial in book.course.open_tasks)
        self._own_sampler: BaseSampler | None = None  # from an import path; it may have state
        self._race: tuple[int, list[tuple[int, int]]] | None = None  # seeds tested, and those that are still to test

    def run(self, stopped: Callable[[], bool]) -> bool:
        """Run until the study ends, or until `stopped`, with a checkpoint of every run. Whether the study ended."""
        for fill in (self._search, self._confirm):
            while not stopped():
                for slot in self.slots:
                    if not slot.busy and not fill(slot):
                        break
                if not any(slot.busy for slot in self.slots):
                    break
                if not self._due():
                    self._wait()
                for slot in self._arrivals():
                    self._look(slot)
            else:
                self.leave()
                return False
        return True

    def kill(self) -> None:
        """End all runs now."""
        for slot in self.slots:
            self._kill(slot)

    def _kill(self, slot: Slot) -> None:
        for run in slot.runs:
            if run.training is not None:
                run.training.kill()

    def _enter(self, event: Event) -> None:
        self.book.enter(event)
        self._tell(event)

    def _due(self) -> bool:
        """Whether a slot's runs have all ended, so that its next step does not wait for anything."""
        return any(slot.busy and all(run.code is not None for run in slot.runs) for slot in self.slots)

    def _wait(self) -> None:
        runs = [run.training for slot in self.slots for run in slot.runs]
        self._trainings.wait([run for run in runs if run is not None and run.code is None], LOOK)

    def _arrivals(self) -> list[Slot]:
        """Busy slots in the order in which reports of the same moment count.

        Lanes of a population reach the end of a phase together. Their order is drawn from the seed, the phase and the trial: if it
        were the order of the slots, the same trials would report first in every phase, and HyperTrick would never evict them.
        """
        seed = self.plan.config.seed
        busy = [slot for slot in self.slots if slot.busy]
        return sorted(busy, key=lambda slot: uniform(seed, slot.trial, slot.end, "arrival"))

    # Assigning trials to slots

    def _search(self, slot: Slot) -> bool:
        """Assign a trial to the slot; False if there is none now."""
        trial = self._next()
        if trial is not None:
            self._start(slot, trial)
        return trial is not None

    def _next(self) -> Trial | None:
        held = {slot.trial for slot in self.slots if slot.busy}
        trials = self.book.course.trials
        for number in self._waiting:
            if number not in held:
                self._waiting.remove(number)
                return trials[number]
        while (task := self.scheduler.next()) is not None:
            if task.trial in trials:
                settings, number_ = trials[task.trial].settings, trials[task.trial].optuna
            else:
                settings, number_ = self.book.ask(self._sampler(task.trial))
            self._enter(Tasked(time.time(), *task, settings, number_))
            if task.trial not in held:
                return trials[task.trial]
            self._waiting.append(task.trial)  # its processes are still ending
        return None

    def _sampler(self, trial: int) -> BaseSampler:
        """The sampler for the configuration of a new trial."""
        given = self.book.course.given(trial)
        if given is not None:
            return Drawn(lambda number: given, trial)
        config = self.plan.config
        if self._own_sampler is not None:
            return self._own_sampler
        earlier = self.book.earlier if config.sampler == "cmaes" else ()
        made = make_sampler(config.sampler, self.plan.space, seed=config.seed, trial=trial, earlier=earlier)
        if config.sampler not in SAMPLERS:
            self._own_sampler = made
        return made

    def _start(self, slot: Slot, trial: Trial) -> None:
        assert trial.task is not None
        self._place(slot, trial.number, trial.task.end, None)
        self._copy(trial)  # still to do if the driver died right after the decision
        home = self._home(trial.number, trial.copies)
        for seed in self.plan.tune_seeds:
            self._train(slot, home / f"seed-{seed}", self.plan.settings(trial.settings, seed))

    def _copy(self, trial: Trial) -> None:
        """Copy the checkpoints of the trial's source, unless that is done."""
        if not trial.copies:
            return
        unit, source = trial.copies[-1]
        lineage = {"trial": trial.number, "source": source, "unit": unit}
        before, home = self._home(source, trial.origin), self._home(trial.number, trial.copies)
        for name in (f"seed-{seed}" for seed in self.plan.tune_seeds):
            if not (home / name).exists():
                copy_run(before / name, home / name, self.plan.phase, lineage)

    def _home(self, number: int, copies: Sequence[tuple[int, int]]) -> Path:
        """The folder of a trial's runs; a new one after each copy."""
        folder = self.folder / "trials" / f"{number:03d}"
        if not copies:
            return folder
        unit, source = copies[-1]
        return folder / f"phase-{unit}-from-{source:03d}"

    def _confirm(self, slot: Slot) -> bool:
        """Assign a fresh seed of one of the best trials, or of the baseline, to the slot; False if there is none now."""
        if self.plan.confirm is None:
            return False
        held = {(other.trial, other.seed) for other in self.slots if other.busy}
        tested = sum(map(len, self.book.course.tests.values()))
        if self._race is None or self._race[0] != tested:  # cached: its intervals are slow to compute
            self._race = (tested, still_to_test(self.plan, self.book.course))
        for number, seed in self._race[1]:
            if (number, seed) not in held:
                self._place(slot, number, self.plan.config.phases, seed)
                name = "default" if number == BASELINE else f"{number:03d}"
                tried = {} if number == BASELINE else self.book.course.trials[number].settings
                self._train(slot, self.folder / "confirm" / name / f"seed-{seed}", self.plan.settings(tried, seed))
                return True
        return False

    def _place(self, slot: Slot, trial: int, end: int, seed: int | None) -> None:
        slot.trial, slot.end, slot.seed, slot.then, slot.why = trial, end, seed, "", ""
        slot.metrics_at = time.monotonic()
        self._enter(Started(time.time(), trial, slot.number, seed))

    def _train(self, slot: Slot, folder: Path, settings: dict[str, object]) -> None:
        run = SeedRun(self._trainings, folder, settings, self.plan.phase)
        slot.runs.append(run)
        run.train(slot.end)

    # Watching slots

    def _look(self, slot: Slot) -> None:
        new = [run.look() for run in slot.runs]  # a list, so that every run is polled
        if any(new):
            slot.metrics_at = time.monotonic()
        if slot.then:
            if all(run.code is not None for run in slot.runs):
                self._ended(slot)
            elif time.monotonic() - slot.metrics_at > self.plan.config.lease:  # it hangs instead of ending
                self._kill(slot)
            return
        lost = next((why for run in slot.runs if (why := run.why_lost())), "")
        if not lost and time.monotonic() - slot.metrics_at > self.plan.config.lease:
            lost = f"no metrics for {self.plan.config.lease:g} s"
        if lost:
            self._kill(slot)
            slot.then, slot.why = "lost", lost
            return
        failed = next((run for run in slot.runs if run.code in (1, 2)), None)
        if failed is not None:
            assert failed.training is not None
            self._end(slot, "report", failed.training.reason)
        elif all(run.reached(slot.end) is not None or run.code is not None for run in slot.runs):
            if slot.seed is not None or self.scheduler.copies:
                self._end(slot, "report")
            else:
                self._report(slot)

    def _end(self, slot: Slot, then: Literal["free", "report"], why: str = "", *, pause: bool = True) -> None:
        """Ask for checkpoints; `then` happens once the processes have ended."""
        slot.then, slot.why, slot.metrics_at = then, why, time.monotonic()
        for run in slot.runs:
            if run.training is not None and run.code is None:
                run.training.pause() if pause else run.training.stop()

    def _ended(self, slot: Slot) -> None:
        then, slot.then = slot.then, ""
        broken = next((run for run in slot.runs if run.code), None)
        if then == "report" and broken is not None and not slot.why:  # its last checkpoint is missing
            assert broken.training is not None
            slot.why = broken.training.reason
            then = "report" if broken.code in (1, 2) else "lost"
        if then == "report":
            self._test(slot) if slot.seed is not None else self._report(slot)
        elif then == "lost":
            self._lose(slot)
        else:
            slot.runs = []

    def _lose(self, slot: Slot) -> None:
        trial, why = slot.trial, slot.why
        count = 1 + sum(
            isinstance(event, Lost) and (event.trial, event.seed) == (trial, slot.seed)
            for event in self.book.course.events
        )
        self._enter(Lost(time.time(), trial, slot.number, why, slot.seed))
        if count > LOSSES:
            slot.why = f"lost {count} times; the last time: {why}"
            self._test(slot) if slot.seed is not None else self._report(slot)
            return
        slot.runs = []
        if slot.seed is None:
            self._waiting.appendleft(trial)

    def _scores(self, slot: Slot) -> list[float]:
        return [math.nan if slot.why else run.tally.score(run.reached(slot.end)) for run in slot.runs]

    def _test(self, slot: Slot) -> None:
        assert slot.seed is not None
        [value] = self._scores(slot)
        [run], goal = slot.runs, self.plan.goal
        solved = None if goal is None or slot.why else run.tally.solved(goal, run.reached(slot.end))
        steps, seconds = solved or (None, None)
        self._enter(Tested(time.time(), slot.trial, slot.seed, slot.number, value, slot.why, steps, seconds))
        slot.runs = []

    def _report(self, slot: Slot) -> None:
        """Report the phase's score to the scheduler, and follow its decision."""
        trial, scores = self.book.course.trials[slot.trial], self._scores(slot)
        value = math.fsum(scores) / len(scores)
        why = slot.why or ("no episode ended with a finite return" if math.isnan(value) else "")
        decision = self.scheduler.report(slot.trial, slot.end, value)
        settings = None
        if decision.source is not None:
            source = self.book.course.trials[decision.source].settings
            seed = self.plan.config.seed
            settings = explore(self.plan.space, source, seed=seed, trial=slot.trial, unit=slot.end)
        self._enter(
            Reported(
                time.time(),
                slot.trial,
                slot.number,
                slot.end,
                value,
                scores,
                decision.verdict,
                decision.end,
                list(decision.stopped),
                decision.source,
                settings,
                why,
            )
        )
        if decision.source is not None:
            self._copy(trial)  # now, because the source will continue, or copy another trial itself
        if decision.verdict != "continue":
            self._end(slot, "free", pause=decision.verdict == "pause")
        elif self.scheduler.copies:  # its processes have ended, perhaps to write a checkpoint
            slot.runs = []
            self._start(slot, trial)
        else:
            slot.end = decision.end
            for run in slot.runs:
                run.train(slot.end)

    # Leaving

    def leave(self) -> None:
        """End every run with a checkpoint; kill those that take too long. Their tasks stay open in the ledger."""
        for slot in self.slots:
            if slot.busy and not slot.then:
                self._end(slot, "free")
        deadline = time.monotonic() + PATIENCE
        while any(run.code is None for slot in self.slots for run in slot.runs):
            if time.monotonic() > deadline:
                self.kill()
            self._wait()
