"""Fixed records of arrays, which ports carry. The layout is known when the program is built, so a slot is plain memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

ALIGN = 64  # bytes: a cache line, and the alignment XLA needs to read memory in place


class Field(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Record(NamedTuple):
    """Named arrays with fixed shapes. `views` maps them onto a buffer; `empty` allocates one."""

    fields: tuple[Field, ...]

    @classmethod
    def like(cls, arrays: Mapping[str, Any]) -> Record:
        """The record whose fields are shaped like these arrays (or shape-and-dtype structures)."""
        return cls(tuple(Field(name, tuple(a.shape), np.dtype(a.dtype).name) for name, a in arrays.items()))

    def _offsets(self) -> Iterator[tuple[Field, int]]:
        at = 0
        for field in self.fields:
            yield field, at
            at += -(-field.nbytes // ALIGN) * ALIGN

    @property
    def nbytes(self) -> int:
        """The size of one record, each field aligned."""
        return max(ALIGN, sum(-(-field.nbytes // ALIGN) * ALIGN for field in self.fields))

    def views(self, buffer: Any, offset: int = 0) -> dict[str, np.ndarray]:
        """Arrays over `buffer`, which must hold `nbytes` bytes from `offset` on."""
        return {
            field.name: np.ndarray(field.shape, field.dtype, buffer=buffer, offset=offset + at)
            for field, at in self._offsets()
        }

    def empty(self) -> dict[str, np.ndarray]:
        """A zeroed record in memory of its own, aligned so that JAX may read it in place."""
        raw = np.zeros(self.nbytes + ALIGN, np.uint8)
        return self.views(raw.data, -raw.ctypes.data % ALIGN)
