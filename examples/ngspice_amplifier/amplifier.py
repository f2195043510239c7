"""A two-stage amplifier in ngspice: the least supply current that reaches a bandwidth, for each temperature, supply and load.

               vdd ──┬──────────┬──────────────┬─────────
                    M3 ── x ── M4             M6 (fingers)
                     │          │ y ──┬─ gate ─┘│
               n ── M1         M2 ── p└ Rz ─ Cc ┤ out ── load
                     └── tail ──┘               │
          bias ── Mb ──── Mt ────────────────── M7 (fingers)

Knobs: the bias current, the Miller capacitor Cc, the resistor Rz that moves its zero, and the fingers of the second stage.
Conditions: temperature, supply and load. The amplifier must be stable: a phase margin of at least 60 degrees.
"""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache

import numpy as np

from shoal.optimize import Problem

BANDWIDTH_MHZ, MARGIN = 20.0, 60.0
CELLS = 12  # of one netlist
CELL = """
Vdd{i} v{i} 0 {vdd}
Vin{i} p{i} 0 dc {middle} ac 1
Ib{i} v{i} b{i} {amperes}
Mb{i} b{i} b{i} 0 0 nm w=10u l=1u temp={temp}
Mt{i} t{i} b{i} 0 0 nm w=20u l=1u temp={temp}
M1{i} x{i} n{i} t{i} 0 nm w=40u l=1u temp={temp}
M2{i} y{i} p{i} t{i} 0 nm w=40u l=1u temp={temp}
M3{i} x{i} x{i} v{i} v{i} pm w=20u l=1u temp={temp}
M4{i} y{i} x{i} v{i} v{i} pm w=20u l=1u temp={temp}
M6{i} o{i} y{i} v{i} v{i} pm w=20u l=1u m={fingers} temp={temp}
M7{i} o{i} b{i} 0 0 nm w=10u l=1u m={fingers} temp={temp}
Rz{i} y{i} z{i} {ohms}
Cc{i} z{i} o{i} {farads}
Cl{i} o{i} 0 {load}p
Lf{i} o{i} n{i} 1e9
Cf{i} n{i} 0 1e9
"""
NETLIST = """two-stage amplifiers
.model nm nmos level=1 vto=0.45 kp=200u lambda=0.06 cgso=0.3n cgdo=0.3n cox=6m
.model pm pmos level=1 vto=-0.45 kp=70u lambda=0.08 cgso=0.3n cgdo=0.3n cox=6m
{cells}
.save {saved}
.control
op
{currents}
ac dec 10 10k 3g
{measures}
quit 0
.endc
.end
"""
FOUND = re.compile(r"^(i\(vdd|bandwidth|phase)(\d+)\)?\s+=\s+(\S+)", re.MULTILINE)


def simulate(bias, miller, zero, fingers, temp, vdd, load) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(supply current in uA, unity-gain bandwidth in MHz, phase margin in degrees), NaN where there is no unity gain.

    Some points are cells of one netlist: starting ngspice takes longer than solving a cell, but many cells slow each other down.
    """
    points = np.broadcast_arrays(*(np.atleast_1d(a) for a in (bias, miller, zero, fingers, temp, vdd, load)))
    rows = list(zip(*(a.tolist() for a in points), strict=True))
    found = [_solved(tuple(rows[at : at + CELLS])) for at in range(0, len(rows), CELLS)]
    supply, bandwidth, margin = (np.concatenate(column) for column in zip(*found, strict=True))
    return supply, bandwidth, margin


@lru_cache(maxsize=256)  # the cost and the constraint ask for the same points
def _solved(rows: tuple[tuple, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells, currents, measures = [], [], []
    for i, (bias, miller, zero, fingers, temp, vdd, load) in enumerate(rows):
        values = {"amperes": 1e-6 * 10.0**bias, "farads": 1e-12 * 10.0**miller, "ohms": 10.0**zero, "middle": 0.6 * vdd}
        cells.append(CELL.format(i=i, **values, fingers=int(fingers), temp=temp, vdd=vdd, load=load))
        currents.append(f"print i(vdd{i})")
        measures += [
            f"meas ac bandwidth{i} when vdb(o{i})=0 fall=1",
            f"meas ac phase{i} find vp(o{i}) when vdb(o{i})=0 fall=1",
        ]
    saved = " ".join(f"v(o{i}) i(vdd{i})" for i in range(len(rows)))
    netlist = NETLIST.format(
        cells="".join(cells), saved=saved, currents="\n".join(currents), measures="\n".join(measures)
    )
    done = subprocess.run(["ngspice", "-b"], input=netlist, capture_output=True, text=True, timeout=120)
    found = {(name, int(i)): float(value) for name, i, value in FOUND.findall(done.stdout)}
    if done.returncode or not all(("i(vdd", i) in found for i in range(len(rows))):
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise RuntimeError(f"ngspice gave no operating point: {last}")
    supply, bandwidth, phase = (
        np.array([found.get((name, i), np.nan) for i in range(len(rows))]) for name in ("i(vdd", "bandwidth", "phase")
    )
    degrees = np.degrees(phase)  # from 0 downwards; ngspice wraps them at -180
    return -1e6 * supply, 1e-6 * bandwidth, 180.0 + np.where(degrees > 0.0, degrees - 360.0, degrees)


def cost(bias, miller, zero, fingers, temp, vdd, load):
    """The logarithm of the supply current, and of what the bandwidth lacks."""
    supply, bandwidth, _ = simulate(bias, miller, zero, fingers, temp, vdd, load)
    lacks = np.maximum(0.0, np.log10(BANDWIDTH_MHZ / bandwidth))
    values = np.log10(supply) + 5.0 * lacks
    return values if np.broadcast(bias, miller, zero, fingers, temp, vdd, load).ndim else float(values[0])


def unstable(bias, miller, zero, fingers, temp, vdd, load):
    """Degrees of phase margin that are missing, over 60; not above 0 if the amplifier is stable."""
    _, _, margin = simulate(bias, miller, zero, fingers, temp, vdd, load)
    values = 1.0 - margin / MARGIN
    return values if np.broadcast(bias, miller, zero, fingers, temp, vdd, load).ndim else float(values[0])


def problem() -> Problem:
    """Bias, Miller capacitor and resistor by their decimal logarithms, in uA, pF and Ohm."""
    return Problem(
        cost,
        knobs={"bias": (-0.3, 1.7), "miller": (-0.7, 0.7), "zero": (2.0, 4.5), "fingers": range(1, 17)},
        conditions={"temp": (-40.0, 125.0), "vdd": (1.6, 2.2), "load": (1.0, 10.0)},
        subject_to=unstable,
        kind="numpy",
        name="amplifier",
    )
