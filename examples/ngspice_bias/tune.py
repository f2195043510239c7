"""Learn the trim of a bias cell against temperature and supply, simulated by ngspice in two processes. Two or three minutes.

python examples/ngspice_bias/tune.py [updates]        needs ngspice on the PATH (apt-get install ngspice)
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from bias import TARGET_UA, cost, problem, simulate
from matplotlib.figure import Figure

from shoal.optimize import learn

if shutil.which("ngspice") is None:
    raise SystemExit("ngspice is not on the PATH: apt-get install ngspice")
updates = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
learnt = learn(
    problem(),
    algo="reinforce",
    sampler="latin_hypercube",
    drivers=2,
    runtime="processes",
    steps=updates,
    episodes=48,
    time_steps=1,  # actions are whole answers, so one step is enough
    score=False,  # a searched optimum for each of 441 conditions would take longer than the training
)
law, folder = learnt.law, Path(learnt.summary["run"])
law.export(folder / "law.py")

temps, supplies = np.linspace(-40, 125, 12), (1.6, 2.0, 2.4)
fixed = law(temp=42.5, vdd=2.0)
figure = Figure(figsize=(9, 3.4), layout="constrained")
left, right = figure.subplots(1, 2)
for colour, vdd in zip(("#4477AA", "#228833", "#EE6677"), supplies, strict=True):
    knobs = law(temp=temps, vdd=vdd)
    left.plot(temps, simulate(**knobs, temp=temps, vdd=vdd)[0], color=colour, lw=1.8, label=f"{vdd} V, the law's")
    left.plot(
        temps, simulate(**fixed, temp=temps, vdd=vdd)[0], color=colour, lw=1.2, ls=":", label=f"{vdd} V, one for all"
    )
    right.plot(temps, 24 * 3.0 ** knobs["trim"], color=colour, lw=1.8, label=f"{vdd} V")
left.axhline(TARGET_UA, color="black", lw=0.8)
left.set(xlabel="temperature / °C", ylabel="load current / uA", yscale="log", yticks=(50, 70, 100, 140, 200))
left.yaxis.set_major_formatter("{x:.0f}")
left.minorticks_off()
right.set(xlabel="temperature / °C", ylabel="trimmed resistor / kOhm")
left.legend(fontsize=7, frameon=False, ncols=3, loc="upper center")
right.legend(fontsize=8, frameon=False)
figure.savefig(folder / "law.png", dpi=120)

temp, vdd = (grid.ravel() for grid in np.meshgrid(temps, np.linspace(1.6, 2.4, 9)))
tuned, one = cost(**law(temp=temp, vdd=vdd), temp=temp, vdd=vdd), cost(fixed["trim"], fixed["fingers"], temp, vdd)
print(f"{learnt.evaluations} simulations, {learnt.dropped} episodes dropped, {learnt.summary['wall_s']:.0f} s")
print(f"at 25 °C, 1.8 V: {law(temp=25.0, vdd=1.8)}")
print(f"mean cost over {len(temp)} conditions: {tuned.mean():.3f} by the law, {one.mean():.3f} with one trim for all")
print(f"picture: {folder / 'law.png'}; the law for a device, NumPy alone: {folder / 'law.py'}")
