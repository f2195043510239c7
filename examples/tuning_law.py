"""Learn a tuning law: knobs of three kinds, two conditions, one answer in microseconds. A few seconds; no `__main__` guard.

python examples/tuning_law.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import shoal


def loss(bias, mode, taps, temp, vdd):
    """What a device's datasheet might say: the best bias follows the temperature, the best number of taps the supply."""
    wanted = 1.0 + temp / 100.0
    return (bias - wanted) ** 2 + jnp.where(mode == 2, 0.0, 0.5) + 0.1 * (taps - 10.0 * (vdd - 1.5)) ** 2


problem = shoal.optimize.Problem(
    loss,
    knobs={"bias": (0.1, 5.0), "mode": [1, 2, 3], "taps": range(1, 9)},
    conditions={"temp": (-40, 125), "vdd": (1.6, 2.0)},
)
folder = Path(tempfile.mkdtemp(prefix="shoal-law-"))
law = shoal.learn_to_optimize(problem, drivers=3, budget=200_000, out=folder / "run")

print("25 °C, 1.8 V:", law(temp=25, vdd=1.8))
print("five temperatures:", np.round(law(temp=np.linspace(-40, 125, 5), vdd=1.8)["bias"], 2))
print("polished:", law.refine(temp=25, vdd=1.8))
print("regret:", law.regret(n=64))

law.save(folder / "law.safetensors")
again = shoal.optimize.load(folder / "law.safetensors", problem)
assert again(temp=25, vdd=1.8) == law(temp=25, vdd=1.8)
print("for a device, NumPy alone:", law.export(folder / "law.py"), f"{(folder / 'law.py').stat().st_size} bytes")
