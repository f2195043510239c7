"""A self-signed certificate, made by the `openssl` command: Python's own library reads certificates but makes none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from shoal.core.errors import BadInput, RunFailed


def make_certificate(cert: Path, key: Path, names: list[str], days: int) -> None:
    """Write a certificate for these host names or addresses, and its key, which its owner alone may read.

    Raises `BadInput` for a file that exists or cannot be written.
    """
    command = shutil.which("openssl")
    if command is None:
        raise BadInput("a certificate is made by the openssl command, which is not installed here")
    _reserve(cert, key)
    alternatives = ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in names)
    words = [
        command, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256",
        "-days", str(days), "-subj", f"/CN={names[0]}", "-addext", f"subjectAltName={alternatives}",
        "-keyout", str(key), "-out", str(cert),
    ]  # fmt: skip
    before = os.umask(0o077)
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    finally:
        os.umask(before)
    if done.returncode:
        for path in (cert, key):
            path.unlink(missing_ok=True)
        lines = done.stderr.strip().splitlines()
        raise RunFailed(f"openssl could not make a certificate: {lines[-1] if lines else done.returncode}")


def _reserve(*paths: Path) -> None:
    """Create these files empty, and none if one of them is refused: openssl would replace what is there."""
    made: list[Path] = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            for other in made:
                other.unlink()
            if isinstance(error, FileExistsError):
                raise BadInput(f"{str(path)!r} exists already; name another file") from None
            raise BadInput(f"cannot write {str(path)!r}: {error.strerror}") from None
        made.append(path)


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdigit() or ":" in name
