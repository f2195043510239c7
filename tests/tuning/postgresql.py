"""A PostgreSQL server of the tests' own: a cluster in a temporary folder, reached by a socket in it, gone afterwards."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPTIONS = "-c listen_addresses= -c fsync=off -c shared_buffers=16MB -c max_connections=60"


class Server:
    """`start` and `stop` may follow one another: what was committed stays."""

    def __init__(self, folder: Path, programs: Path, user: dict[str, Any]) -> None:
        self._folder, self._programs, self._user = folder, programs, user
        self._call("initdb", "-U", "shoal", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self.url = f"postgresql://shoal@/postgres?host={folder}"

    def start(self) -> None:
        log, options = str(self._folder / "log"), f"-k {self._folder} {OPTIONS}"
        self._call("pg_ctl", "start", "-w", "-t", "120", "-s", "-l", log, "-o", options)

    def stop(self) -> None:
        self._call("pg_ctl", "stop", "-w", "-t", "120", "-s", "-m", "fast")

    def _call(self, program: str, *words: str) -> None:
        command = [str(self._programs / program), "-D", str(self._folder / "data"), *words]
        # The server keeps what it inherits: a pipe would stay open, so its messages go to a file.
        with (self._folder / f"{program}.out").open("w+") as out:
            done = subprocess.run(command, stdout=out, stderr=out, cwd=self._folder, check=False, **self._user)
            out.seek(0)
            assert done.returncode == 0, f"{program}: {out.read()}"


@contextmanager
def private_server() -> Iterator[Server]:
    """Started. Without a server or its driver the test is skipped; in CI it fails."""
    programs = _programs()
    if programs is None or importlib.util.find_spec("psycopg") is None:
        what = "psycopg is not installed: make setup" if programs else "PostgreSQL is not installed: make system"
        if os.environ.get("CI") == "true":
            pytest.fail(what)
        pytest.skip(what)
    folder = Path(tempfile.mkdtemp(prefix="shoal-pg-"))  # short: the path of a socket has at most 107 characters
    try:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            entry = _unprivileged()
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        server = Server(folder, programs, user)
        server.start()
        try:
            yield server
        finally:
            if (folder / "data" / "postmaster.pid").exists():
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return places[-1].parent if places else None


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("no user to run PostgreSQL as: neither postgres nor nobody exists")
