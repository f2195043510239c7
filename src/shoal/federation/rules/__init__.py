"""How a parent merges its children's weights: pure functions of vectors, one file per rule.

Contents: `RULES`, the interface of a rule (`rule`) and the code that round-based rules share (`rounds`). May import: NumPy and
`shoal.core.errors`. To add one: its file with its formula as a function and a settings class that implements `Rule`, a
line in `RULES`, a slow oracle in its test. Looking for the caller? `federation.state`. For how a child adopts the parent's
weights? `federation.adoption`.
"""

from __future__ import annotations

from typing import Any

from shoal.federation.rules.alpha_beta import AlphaBeta
from shoal.federation.rules.clipped_mean import ClippedMean
from shoal.federation.rules.diloco import DiLoCo
from shoal.federation.rules.fedavg import FedAvg
from shoal.federation.rules.fedbuff import FedBuff
from shoal.federation.rules.median import Median
from shoal.federation.rules.staleness import Staleness
from shoal.federation.rules.trimmed_mean import TrimmedMean

RULES: dict[str, type[Any]] = {
    "alpha_beta": AlphaBeta,
    "fedavg": FedAvg,
    "staleness": Staleness,
    "fedbuff": FedBuff,
    "diloco": DiLoCo,
    "clipped_mean": ClippedMean,
    "trimmed_mean": TrimmedMean,
    "median": Median,
}
