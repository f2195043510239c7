"""Hyperparameter studies: schedulers, simulated schedules, and the driver that trains trials.

Schedulers are pure functions of their reports: `hypertrick`, `halving`, `hyperband`, `pbt`, which implement the protocol in
`scheduler`. `spaces` has the search spaces; `simulate` and `schedules` run schedulers on any number of nodes without training.
Studies that train: `config` (settings of a study), `study` (its folder and results), `runner` (drives trials, which are
`trainings`, or `lanes` of compiled functions in `population`), `events` and `book` (the ledger, in Optuna's storage), `replay`,
`race` (winners on fresh seeds), `warm` (starts from the results of an earlier study), `samplers`, `phases`, `timeline` and
`document` (for the report), `dashboard`. For any Optuna study: `pruner`, `distributions` and `storage` (HyperTrick, spaces and
the journal file). `experiments` and `versus` reproduce published tables.

May import: `studies` and everything below it; `optuna` only in `book`, `runner`, `samplers`, `document`, `pruner`,
`distributions` and `storage`, so that schedulers and simulation work without it. You may change: add a scheduler by its file and
a line in `schedulers.SCHEDULERS`. Looking for the figures? `observe.gantt` and `observe.study_report`. For grids of trainings?
`studies.grid`.
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
