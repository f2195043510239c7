"""A law as a C99 header of its own, for a device without Python. It holds the raw policy, without a surrogate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.errors import BadInput
from shoal.optimize import axes

if TYPE_CHECKING:
    from shoal.optimize.law import Law

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TAKEN = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register restrict
    return short signed sizeof static struct switch typedef union unsigned void volatile while
    at i j knobs out point step sum""".split()  # noqa: SIM905
)
COLUMNS = 120


def header_of(law: Law) -> str:
    """The text of a header with one function, `NAME_law(conditions)`, that returns a struct of the knobs.

    Raises:
        BadInput: the name of a knob or a condition is none in C, or a choice is neither a word nor a number.
    """
    problem, weights = law.problem, law.weights
    for axis in problem.axes:
        if not NAME.fullmatch(axis.name) or axis.name in TAKEN:
            raise BadInput(f"{axis.name!r} cannot be a name in C: rename it to export a header")
    name = re.sub(r"\W", "_", problem.name, flags=re.ASCII)
    name = name if NAME.fullmatch(name) else f"law_{name}"
    arrays = [(f"w{i}", w) for i, (w, _) in enumerate(weights.layers)] + [("wh", weights.head[0])]
    arrays += [(f"b{i}", b) for i, (_, b) in enumerate(weights.layers)] + [("bh", weights.head[1])]
    if weights.mean is not None and weights.scale is not None:
        arrays += [("mean", weights.mean), ("scale", weights.scale)]
    arrays += [("mid", np.asarray(problem.mid(), np.float64))]
    knobs = [_Knob(law, axis, at, name) for axis, at in zip(problem.knobs, law.columns_of_head(), strict=True)]
    fields = "".join(f"    {knob.type}{axis.name};\n" for knob, axis in zip(knobs, problem.knobs, strict=True))
    columns = np.cumsum([0, *(axis.width for axis in problem.knobs)])
    steps = "".join(knob.step(int(at)) for knob, at in zip(knobs, columns[:-1], strict=True))
    given = "".join(
        f"    point[{problem.knob_width + i}] = ({axis.name} - ({axis.low!r})) * 2.0 / {axis.high - axis.low!r} - 1.0;\n"
        for i, axis in enumerate(problem.conditions)
    )
    conditions = ", ".join(f"double {axis.name}" for axis in problem.conditions) or "void"
    return _TEMPLATE.format(
        title=problem.name,
        name=name,
        guard=f"{name.upper()}_LAW_H",
        fields=fields,
        arrays="".join(_array(f"{name}_{called}", values) for called, values in arrays),
        tables="".join(knob.table for knob in knobs),
        conditions=conditions,
        knob_width=problem.knob_width,
        width=problem.width,
        given=given,
        time_steps=law.time_steps,
        net=_net(law, name),
        steps=steps,
    )


class _Knob:
    """The declaration of a knob, and the code that computes its value and its columns from the net's output."""

    def __init__(self, law: Law, axis: Any, at: int, name: str) -> None:
        self._axis, self._at, self._bounded = axis, at, bool(law.meta.get("bounded", False))
        self.type, self.table = "double ", ""
        if isinstance(axis, axes.Whole):
            self.type = "long "
        elif not isinstance(axis, axes.Real):
            among = [value.item() if isinstance(value, np.generic) else value for value in axis.among]
            words = [isinstance(value, str) for value in among]
            if any(words) != all(words) or not all(isinstance(value, str | int | float) for value in among):
                raise BadInput(f"knob {axis.name!r} has the values {among!r}: all words or all numbers can be exported")
            self.type = "const char *" if words[0] else "double "
            kind = "const char *const " if words[0] else "const double "
            self._among = f"{name}_{axis.name}_among"
            listed = ", ".join(_quoted(value) if words[0] else repr(float(value)) for value in among)
            self.table = f"static {kind}{self._among}[] = {{{listed}}};\n"

    def step(self, column: int) -> str:
        """Statements that set the knob and its columns of the point."""
        axis, at = self._axis, self._at
        if isinstance(axis, axes.Real):
            value = f"tanh(out[{at}])" if self._bounded else f"fmin(fmax(out[{at}], -1.0), 1.0)"
            return (
                f"        point[{column}] = {value};\n"
                f"        knobs.{axis.name} = {axis.low!r} + (point[{column}] + 1.0) * {axis.high - axis.low!r} / 2.0;\n"
            )
        chosen = (
            f"        at = 0;\n        for (i = 1; i < {axis.size}; i++) if (out[{at} + i] > out[{at} + at]) at = i;\n"
        )
        if isinstance(axis, axes.Whole):
            share = f"at * 2.0 / {axis.size - 1} - 1.0" if axis.size > 1 else "0.0"
            value = f"        knobs.{axis.name} = {axis.among.start} + {axis.among.step} * (long)at;\n"
            return f"{chosen}{value}        point[{column}] = {share};\n"
        value = f"        knobs.{axis.name} = {self._among}[at];\n"
        return f"{chosen}{value}        for (i = 0; i < {axis.size}; i++) point[{column} + i] = i == at;\n"


def _quoted(word: str) -> str:
    """A word as a literal of C, byte by byte where it is not plain."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in word.encode())
    return f'"{"".join(plain)}"'


def _array(name: str, values: np.ndarray) -> str:
    """A row of a matrix after another. Nine digits give the same float again, seventeen the same double."""
    flat, kind = values.ravel(), "double" if values.dtype == np.float64 else "float"
    return f"static const {kind} {name}[{flat.size}] = {{\n{_lines(_number(v, kind) for v in flat.tolist())}}};\n"


def _number(value: float, kind: str) -> str:
    text, end = (f"{value:.17g}", "") if kind == "double" else (f"{value:.9g}", "f")
    return f"{text}{end}" if any(mark in text for mark in ".e") else f"{text}.0{end}"


def _lines(words: Iterable[str]) -> str:
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) + 2 > COLUMNS:
            lines.append(line.rstrip())
            line = ""
        line += f"{word}, "
    return "\n".join([*lines, line.rstrip()]) + "\n"


def _net(law: Law, name: str) -> str:
    """Statements from `point` to `out`, layer by layer."""
    weights, text = law.weights, ""
    source, width = "point", law.problem.width
    if weights.mean is not None and weights.scale is not None:
        limited = f"fmin(fmax((point[i] - {name}_mean[i]) * {name}_scale[i], -10.0), 10.0)"
        text += f"        for (i = 0; i < {width}; i++) seen[i] = {limited};\n"
        text = f"        double seen[{width}];\n{text}"
        source = "seen"
    made = [(f"w{i}", f"b{i}", f"h{i}", w.shape[1]) for i, (w, _) in enumerate(weights.layers)]
    for w, b, target, size in [*made, ("wh", "bh", "out", weights.head[0].shape[1])]:
        text = f"        double {target}[{size}];\n{text}"
        text += (
            f"        for (j = 0; j < {size}; j++) {{\n            double sum = {name}_{b}[j];\n"
            f"            for (i = 0; i < {width}; i++) sum += {source}[i] * {name}_{w}[i * {size} + j];\n"
        )
        bent = "sum" if target == "out" else "tanh(sum)" if weights.activation == "tanh" else "fmax(sum, 0.0)"
        text += f"            {target}[j] = {bent};\n        }}\n"
        source, width = target, size
    return text


_TEMPLATE = """/* The tuning law of "{title}": {name}_law(conditions) gives the knobs. C99; link with -lm. */
#ifndef {guard}
#define {guard}

#include <math.h>
#include <string.h>

typedef struct {{
{fields}}} {name}_knobs;

{arrays}{tables}
static inline {name}_knobs {name}_law({conditions}) {{
    {name}_knobs knobs;
    double point[{width}];
    int i, j, at = 0, step;
    (void)at;
    memcpy(point, {name}_mid, {knob_width} * sizeof(double));
{given}    for (step = 0; step < {time_steps}; step++) {{
{net}{steps}    }}
    return knobs;
}}

#endif
"""
