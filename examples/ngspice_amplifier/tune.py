"""Learn the bias of a two-stage amplifier from some hundred simulations by ngspice, under a constraint. One or two minutes.

python examples/ngspice_amplifier/tune.py [evaluations]        needs ngspice on the PATH (apt-get install ngspice)
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from amplifier import BANDWIDTH_MHZ, MARGIN, problem, simulate
from matplotlib.figure import Figure

from shoal.optimize import learn

if shutil.which("ngspice") is None:
    raise SystemExit("ngspice is not on the PATH: apt-get install ngspice")
evaluations = int(sys.argv[1]) if len(sys.argv) > 1 else 600
amplifier = problem()
learnt = learn(amplifier, algo="surrogate", budget=evaluations, score=False, quiet=False)
law, folder = learnt.law, Path(learnt.summary["run"])
law.export(folder / "amplifier.h")

# Conditions that were never used for learning: what the law costs there, and what one design for all of them would.
rng = np.random.default_rng(1)
held = {axis.name: rng.uniform(axis.low, axis.high, 60) for axis in amplifier.conditions}
fixed = law(temp=125.0, vdd=1.6, load=10.0)
designs = {
    "the law": law(**held),
    "the law without polishing, as exported": law(**held, polish=False),
    "the design of the hardest corner, everywhere": fixed,
}


def passed(bandwidth: np.ndarray, margin: np.ndarray) -> int:
    return int(((bandwidth >= 0.98 * BANDWIDTH_MHZ) & (margin >= MARGIN - 1.0)).sum())


print(f"{learnt.evaluations} simulations, {learnt.summary['wall_s']:.0f} s")
for name, knobs in designs.items():
    supply, bandwidth, margin = simulate(**knobs, **held)
    good = (
        f"{passed(bandwidth, margin)} of {len(margin)} conditions have {BANDWIDTH_MHZ:.0f} MHz and {MARGIN:.0f} degrees"
    )
    print(f"{name}: {supply.mean():.1f} uA on average; {good} (within 2 % and 1 degree)")

temps = np.linspace(-40, 125, 12)
figure = Figure(figsize=(10, 3.4), layout="constrained")
panels = figure.subplots(1, 3)
for colour, load in zip(("#4477AA", "#228833", "#EE6677"), (1.0, 4.0, 10.0), strict=True):
    at = {"temp": temps, "vdd": np.full_like(temps, 1.8), "load": np.full_like(temps, load)}
    for panel, ours, one in zip(panels, simulate(**law(**at), **at), simulate(**fixed, **at), strict=True):
        panel.plot(temps, ours, color=colour, lw=1.8, label=f"{load:.0f} pF, the law's")
        panel.plot(temps, one, color=colour, lw=1.1, ls=":", label=f"{load:.0f} pF, one for all")
for panel, name, line in zip(
    panels,
    ("supply current / uA", "bandwidth / MHz", "phase margin / degrees"),
    (None, BANDWIDTH_MHZ, MARGIN),
    strict=True,
):
    panel.set(xlabel="temperature / °C", ylabel=name)
    panel.set_ylim(bottom=0)
    if line is not None:
        panel.axhline(line, color="black", lw=0.8)
figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, frameon=False, ncols=6, loc="outside lower center")
figure.savefig(folder / "law.png", dpi=120)
print(f"picture: {folder / 'law.png'}; the law for a device, in C: {folder / 'amplifier.h'}")
