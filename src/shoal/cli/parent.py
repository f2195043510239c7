"""`shoal parent`: merges the weights of children that train on other machines."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from shoal.cli.federation_flags import configured, finished, help_of, sort, write_report
from shoal.cli.flags import split
from shoal.core.errors import BadInput

SWITCHES = ("quiet", "json", "no-report", "help")
OWN = ("out", "resume", "bind", "cert", "key", "token-file", "children", "pin", "child-tokens", "config")
BIND = "127.0.0.1:7777"

USAGE = """usage: shoal parent ENV [--algo NAME] [--rule NAME] [--alpha A] [--beta B] [--bind HOST:PORT] [--FIELD VALUE ...]
       shoal parent --resume RUN [--bind HOST:PORT]

Serves one agent to children that train it on this or other machines: each pushes its weights, the parent merges them and answers
with its own. Prints the command with which a child joins. Writes a run folder that eval, play, report and --resume read. The
children receive the settings of `shoal train` that describe the run: algorithm, net, --steps over all children, --seed.

  --bind HOST:PORT    address to listen on (127.0.0.1:7777); other than loopback needs --cert and --key
  --cert F --key F    TLS certificate and key; `shoal federation cert` creates a pair
  --token-file T      file with the token that children must present; by default a new one, RUN/token
  --children URLS     dial these listening children (shoal join --listen) instead of listening
  --pin FP,FP         fingerprints of their certificates, in the same order, one for each; nothing between two commas for
                      a child without
  --child-tokens NAME=T,NAME=T
                      names and token files of their own, in the same order; the others use the shared token
  --out FOLDER        the run folder; by default runs/<env>-<algo>-parent-<time>
  --resume RUN        continue a parent's run
  --config FILE       settings of the run from a .toml or .json file; flags win over it
  --quiet             no progress
  --json              one JSON object as the last line of standard output
  --no-report         skip report.html
"""


def run(words: list[str]) -> int:
    parsed = split(words, SWITCHES)
    if "help" in parsed.switches:
        print(help_of(USAGE))
        return 0
    if len(parsed.positional) > 1:
        raise BadInput(f"give one environment, not {len(parsed.positional)}: {' '.join(parsed.positional)}")
    sorted_ = sort(parsed, OWN)
    own, quiet = sorted_.own, "quiet" in parsed.switches
    if not parsed.positional and "resume" not in own and "config" not in own:
        raise BadInput("no environment: give an id such as LunarLander-v3, or --resume RUN")
    given = configured(sorted_)
    children = [url for url in own.get("children", "").split(",") if url]

    from shoal.federation.addresses import check_url, client_tls, fingerprint_of
    from shoal.federation.parent import Parent

    pins = own["pin"].split(",") if "pin" in own else []
    if "pin" in own and len(pins) != len(children):
        raise BadInput(
            f"--pin has {len(pins)} fingerprints for {len(children)} children; it needs one for each of --children"
        )
    for url, pinned in zip(children, pins or [""] * len(children), strict=True):
        client_tls(check_url(url), pinned)
    tokens = child_tokens(own.get("child-tokens", ""), len(children))
    pin = fingerprint_of(own["cert"]) if {"cert", "key"} <= own.keys() else ""  # before anything starts
    settings, env = settings_of(sorted_.settings, own, parsed.positional)
    with Parent(
        env,
        out=own.get("out"),
        resume=own.get("resume"),
        bind=own.get("bind", None if children else BIND),
        cert=own.get("cert"),
        key=own.get("key"),
        token_file=own.get("token-file"),
        children=children,
        pins=pins,
        child_tokens=tokens,
        quiet=quiet,
        **given,
        **settings,
    ) as parent:
        if parent.url:
            print(f"join with:  {join_command(parent, pin)}", file=sys.stderr, flush=True)
        summary = parent.run()
    write_report(summary["run"], wanted="no-report" not in parsed.switches and not summary["stopped"])
    finished(summary, quiet=quiet, json="json" in parsed.switches)
    return 0


def child_tokens(text: str, children: int) -> dict[str, str]:
    """Token files by the names of listening children, in order. `BadInput` if there are more than children."""
    from shoal.cli.federation_tokens import checked_name

    found: dict[str, str] = {}
    for word in text.split(",") if text else []:
        name, equals, file = word.partition("=")
        if not equals or not file or checked_name("--child-tokens", name) in found:
            raise BadInput(
                f"--child-tokens is {text!r}: expected NAME=FILE,NAME=FILE with a name of its own for each child"
            )
        found[name] = file
    if len(found) > children:
        raise BadInput(f"--child-tokens has {len(found)} files for {children} children; it belongs to --children")
    return found


def settings_of(flags: dict[str, Any], own: dict[str, str], positional: list[str]) -> tuple[dict[str, Any], Any]:
    """(settings of the run, environment), from a file and from flags, which take precedence."""
    from shoal.experiment import merge, read_file

    settings = merge(read_file(own["config"]) if "config" in own else {}, flags)
    named = settings.pop("env", None)
    for name in ("machine", "spec"):
        settings.pop(name, None)
    return settings, positional[0] if positional else named


def join_command(parent: Any, pin: str) -> str:
    """The command to run on a child's machine; `pin` is the fingerprint of the parent's certificate, if it has one."""
    words = ["shoal", "join", parent.url, "--token-file", str(parent.token_file)]
    return shlex.join([*words, "--pin", pin] if pin else words)
