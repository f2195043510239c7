"""The trained policy: one safetensors file that carries its own description and checksum in the header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.core.errors import BadInput
from shoal.run import files, tensors
from shoal.run.files import Corrupt

FORMAT = 1


def save_policy(path: Path | str, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Write `arrays` and `meta` (plain JSON values) to `path` atomically."""
    header = {"format": str(FORMAT), "meta": files.pretty(dict(meta)).decode(), "sha256": files.UNSEALED}
    files.write_atomically(Path(path), files.seal(tensors.encode(arrays, header)))


def load_policy(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, meta). Raises `BadInput` if the file is missing, damaged or of another format."""
    path = Path(path)
    try:
        data = path.read_bytes()
        files.check_seal(data)
        header = tensors.read_metadata(data)
        if header.get("format") != str(FORMAT):
            raise Corrupt(f"its format is {header.get('format')!r}; this version reads {FORMAT}")
        return tensors.decode(data), msgspec.json.decode(header.get("meta", "{}"), type=dict[str, Any])
    except OSError as error:
        raise BadInput(f"cannot read policy {str(path)!r}: {error.strerror}") from None
    except (Corrupt, msgspec.MsgspecError) as error:
        raise BadInput(f"policy {str(path)!r} cannot be used: {error}") from None
