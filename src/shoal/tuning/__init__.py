"""Studies: which trials run, which are stopped, and what a schedule costs.

Here live the schedulers, pure functions of their reports (`hypertrick`, `halving`, `hyperband`, `pbt`, on the protocol of
`scheduler`), `spaces` (what may vary), `simulate` and `schedules` (schedules on any number of nodes, without training); studies
that train: `config` (what a study is), `study` (its folder and what it came to), `runner` (the driver of trials, which are
`trainings`, or lanes of one compiled function in `population`), `events` and `book` (the ledger, in Optuna's storage),
`replay`, `race` (winners on fresh seeds), `warm` (what an earlier study knows), `samplers`, `phases`, `timeline` and `document`
(for the report), `dashboard`; `pruner`, `distributions` and `storage` (HyperTrick, spaces and the journal file for any Optuna
study); `experiments` and `versus` (published tables again). May import: `studies` and everything below it; `optuna` in `book`,
`runner`, `samplers`, `document`, `pruner`, `distributions` and `storage` alone, so that schedulers and simulation work without
it. You may change: add a scheduler by its file and a line in `schedulers.SCHEDULERS`. Looking for the pictures? `observe.gantt`
and `observe.study_report`. For grids of trainings? `studies.grid`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.tuning.pruner import HyperTrickPruner as HyperTrickPruner
    from shoal.tuning.storage import open_journal as open_journal

__all__ = ["HyperTrickPruner", "open_journal"]

_HOMES = {"HyperTrickPruner": "shoal.tuning.pruner", "open_journal": "shoal.tuning.storage"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal.tuning' has no attribute {name!r}")
    import importlib

    from shoal.core.errors import BadInput

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise BadInput(f"shoal.tuning.{name} needs Optuna: pip install 'shoal[tune]'") from None
