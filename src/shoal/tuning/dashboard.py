"""optuna-dashboard behind a read-only shell that listens on loopback and checks the Host header.

Without the shell, any web page open in a browser could delete studies: optuna-dashboard checks neither a password nor the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from shoal.core.errors import BadInput
from shoal.run.folder import read_json
from shoal.tuning.book import open_storage

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def read_only(app: App, port: int) -> App:
    """Wrap `app`: only GET and HEAD requests with a Host of this machine reach it."""
    hosts = {f"{name}:{port}" for name in NAMES}

    def shell(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_HOST", "").lower() not in hosts:
            return _refuse(start, "403 Forbidden", "this dashboard only answers to localhost\n")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _refuse(start, "405 Method Not Allowed", "this dashboard is read-only\n", ("Allow", "GET, HEAD"))

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [*headers, ("X-Frame-Options", "DENY"), ("Referrer-Policy", "no-referrer")], *rest)

        return app(environ, started)

    return shell


def serve(folder: str | Path, port: int, say: Callable[[str], None]) -> int:
    """Serve until interrupted. `BadInput` if optuna-dashboard is not installed or the port is in use."""
    path = Path(folder)
    if not (path / "study.json").is_file():
        raise BadInput(f"{str(folder)!r} is not a study: it has no study.json")
    if not 1 <= port <= 65535:
        raise BadInput(f"--port is {port}: expected 1 to 65535")
    try:
        dashboard: Any = importlib.import_module("optuna_dashboard")
    except ImportError:
        raise BadInput(
            "shoal tune dashboard needs a package that is not installed: pip install optuna-dashboard"
        ) from None
    config = read_json(path / "study.json").get("config")
    if not isinstance(config, dict):
        raise BadInput(f"{str(path / 'study.json')!r} has no config")
    storage = open_storage(path, config.get("storage"))
    try:
        server = make_server(ADDRESS, port, read_only(dashboard.wsgi(storage), port), handler_class=_Silent)
    except OSError as error:
        raise BadInput(f"--port is {port}: {error.strerror}") from None
    say(f"dashboard: http://{ADDRESS}:{port}/ (read-only; Ctrl-C ends it)")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def _refuse(start: Callable[..., Any], status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [text.encode()]
