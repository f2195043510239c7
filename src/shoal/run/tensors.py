"""Named arrays as safetensors bytes and back. Nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from shoal.run.files import Corrupt

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def _dtype(code: str) -> np.dtype[Any]:
    if code not in _DTYPES:
        raise Corrupt(f"it holds an array of unknown type {code}")
    if code == "BF16":
        import ml_dtypes  # NumPy has no bfloat16 of its own; JAX brings it

        kind: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return kind
    return np.dtype(_DTYPES[code])


def encode(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file. Accepts JAX arrays too. Raises `TypeError` for a type that the format lacks."""
    from safetensors.numpy import save

    plain: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        array = np.asarray(value, order="C")  # the buffer is stored as it is; ascontiguousarray would add an axis
        if array.dtype.name not in _DTYPES.values():
            raise TypeError(f"array {name!r} is {array.dtype}, which a safetensors file cannot hold")
        plain[name] = array
    return save(plain, metadata=dict(metadata) if metadata is not None else None)


def decode(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, each in memory of its own. Raises `Corrupt` if the bytes are not such a file."""
    import safetensors

    parse: Any = safetensors.deserialize
    try:
        entries = parse(data)
    except safetensors.SafetensorError as error:
        raise Corrupt(f"it is no safetensors file ({error})") from None
    arrays: dict[str, np.ndarray] = {}
    for name, entry in entries:
        array = np.empty(entry["shape"], _dtype(entry["dtype"]))
        if array.nbytes:
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(entry["data"], np.uint8)
        arrays[name] = array
    return arrays


def read_metadata(data: bytes) -> dict[str, str]:
    """The strings in a safetensors header. Raises `Corrupt` if the bytes are not such a file."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise Corrupt("it is cut off")
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, dict[str, Any]])
        return msgspec.convert(header.get("__metadata__", {}), dict[str, str])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(f"its header is not JSON ({error})") from None
