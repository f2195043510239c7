"""A bias cell in ngspice: a resistor sets the current of a MOS mirror, and must be trimmed against temperature and supply.

    vdd ── R (trim) ──┬── ref ──┐            load, 0.8 V
                      │         │               │
                      └─ drain  └─ gates ──┬─ drain
                           Ma              Mb, so many fingers
                          gnd             gnd

The load wants 100 uA. A larger mirror (more fingers) needs less current in the reference branch, but more area.
"""

from __future__ import annotations

import re
import subprocess

import numpy as np

from shoal.optimize import Problem

TARGET_UA = 100.0
CELL = """
Vdd{i} v{i} 0 {vdd}
R{i} v{i} r{i} {ohms} tc1=1.2e-3 temp={temp}
Ma{i} r{i} r{i} 0 0 nm w=10u l=1u temp={temp}
Mb{i} o{i} r{i} 0 0 nm w=10u l=1u m={fingers} temp={temp}
Vload{i} o{i} 0 0.8
"""
NETLIST = """bias cells
.model nm nmos level=1 vto=0.45 kp=200u lambda=0.08
{cells}
.control
op
print {currents}
quit 0
.endc
.end
"""
CURRENT = re.compile(r"^i\((vload|vdd)(\d+)\) = (\S+)$", re.MULTILINE)


def simulate(trim, fingers, temp, vdd) -> tuple[np.ndarray, np.ndarray]:
    """Operating points: (currents of the load, of the reference branch) in uA, all in one run of ngspice.

    Starting ngspice takes longer than solving a cell, so each of N points is a cell of its own in one netlist.
    """
    points = np.broadcast_arrays(*(np.atleast_1d(a) for a in (trim, fingers, temp, vdd)))
    rows = list(zip(*(a.tolist() for a in points), strict=True))
    cells = "".join(
        CELL.format(i=i, ohms=24e3 * 3.0**trim, fingers=int(fingers), temp=temp, vdd=vdd)
        for i, (trim, fingers, temp, vdd) in enumerate(rows)
    )
    currents = "\nprint ".join(f"i(vload{i}) i(vdd{i})" for i in range(len(rows)))
    netlist = NETLIST.format(cells=cells, currents=currents)
    done = subprocess.run(["ngspice", "-b"], input=netlist, capture_output=True, text=True, timeout=60)
    found = {(name, int(i)): -float(value) * 1e6 for name, i, value in CURRENT.findall(done.stdout)}
    if done.returncode or len(found) != 2 * len(rows):
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise RuntimeError(f"ngspice gave no operating point: {last}")
    load, reference = (np.array([found[name, i] for i in range(len(rows))]) for name in ("vload", "vdd"))
    return load, reference


def cost(trim, fingers, temp, vdd):
    """The cost of a cell: the error of the load's current, the current of the reference branch, and the area of the mirror.

    The error counts by its square if it is small, and grows slowly if it is large: far from the answer its size hardly matters.
    """
    load, reference = simulate(trim, fingers, temp, vdd)
    off = np.log(load / TARGET_UA) ** 2
    values = np.log1p(100.0 * off) + 0.3 * (reference / TARGET_UA + 0.1 * np.atleast_1d(fingers))
    return values if np.broadcast(trim, fingers, temp, vdd).ndim else float(values[0])


def problem() -> Problem:
    return Problem(
        cost,
        knobs={"trim": (-1.0, 1.0), "fingers": range(1, 9)},
        conditions={"temp": (-40.0, 125.0), "vdd": (1.6, 2.4)},
        kind="numpy",
        name="bias",
    )
