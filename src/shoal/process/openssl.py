"""A self-signed certificate, made by the `openssl` command: Python's own library reads certificates but makes none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from shoal.core.errors import BadInput, RunFailed


def make_certificate(cert: Path, key: Path, names: list[str], days: int) -> None:
    """Write a certificate for these host names or addresses, and its key, which its owner alone may read."""
    command = shutil.which("openssl")
    if command is None:
        raise BadInput("a certificate is made by the openssl command, which is not installed here")
    for path in (cert, key):
        if path.exists():
            raise BadInput(f"{str(path)!r} exists already; name another file")
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
        lines = done.stderr.strip().splitlines()
        raise RunFailed(f"openssl could not make a certificate: {lines[-1] if lines else done.returncode}")


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdigit() or ":" in name
