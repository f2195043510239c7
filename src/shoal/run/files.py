"""Atomic, sealed files: written to a temporary file, fsynced and renamed, with a checksum that reveals any damage."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

_LIFE = secrets.token_hex(4)  # distinguishes this process from an earlier one with the same id
_TEMP = re.compile(r"\..+\.(\d+)-([0-9a-f]{8})\.tmp")
_SEAL = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')
UNSEALED = "0" * 64


class Corrupt(Exception):
    """A file is not what was written. The message is the reason, without the file's name."""


def sync_directory(folder: Path) -> None:
    """Make renames in `folder` survive a power cut, if the platform can sync directories."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(folder: Path) -> None:
    """Make `folder` and its missing parents, so that each survives a power cut."""
    if not folder.is_dir():
        make_directory(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` so that it holds the old content or all of `data`, even after a crash. OSError leaves no temporary file."""
    temp = path.with_name(f".{path.name}.{os.getpid()}-{_LIFE}.tmp")
    try:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def clean_temporaries(folder: Path) -> None:
    """Remove killed writers' temporary files; those of live processes stay."""
    for entry in os.listdir(folder):
        match = _TEMP.fullmatch(entry)
        if match is None:
            continue
        pid, life = int(match[1]), match[2]
        if life != _LIFE if pid == os.getpid() else not _alive(pid):
            (folder / entry).unlink(missing_ok=True)


def _sealed_hash(data: bytes, at: int) -> str:
    view = memoryview(data)
    digest = hashlib.sha256(view[:at])
    digest.update(UNSEALED.encode())
    digest.update(view[at + 64 :])
    return digest.hexdigest()


def seal(data: bytes) -> bytes:
    """Put the hash of everything else into the file's own `"sha256": "000..."`, the first such entry."""
    match = _SEAL.search(data)
    if match is None or match[1].decode() != UNSEALED:
        raise ValueError("nothing to seal: the first sha256 is not blank")
    at = match.start(1)
    return data[:at] + _sealed_hash(data, at).encode() + data[at + 64 :]


def check_seal(data: bytes) -> None:
    """Raise `Corrupt` unless every byte is as it was sealed."""
    match = _SEAL.search(data)
    if match is None:
        raise Corrupt("it has no checksum" if data else "it is empty")
    if _sealed_hash(data, match.start(1)) != match[1].decode():
        raise Corrupt("its SHA-256 does not match")


def pretty(document: Any) -> bytes:
    """Indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=2) + b"\n"


def one_line(document: Any) -> str:
    """The same on one line. As everywhere, a number that is not finite becomes null."""
    return msgspec.json.format(pretty(document), indent=-1).decode().strip()


def _plain(value: Any) -> Any:
    """Convert NumPy and pathlib values, which JSON cannot express."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be written to a JSON file")
