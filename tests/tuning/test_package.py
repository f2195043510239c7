"""What the package needs: Optuna for studies alone."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["optuna"] = None
import shoal
from shoal.core.errors import BadInput
from shoal.tuning import experiments, schedules, spaces
assert schedules.measure(schedules.SimulateConfig(repeats=1))
try:
    shoal.tuning.HyperTrickPruner
except BadInput as error:
    print(error)
"""


def test_everything_but_studies_works_without_optuna() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "shoal.tuning.HyperTrickPruner needs Optuna: pip install 'shoal[tune]'\n"
