"""`shoal join`: train here as a child of a parent."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from shoal.cli.flags import split
from shoal.core.errors import BadInput

SWITCHES = ("quiet", "json", "trust-env", "help")
OWN = ("token-file", "name", "pin", "listen", "cert", "key", "out")

USAGE = """usage: shoal join URL --token-file T [--topology NAME] [--actors N] [--runtime NAME] [--envs N]
       shoal join --listen HOST:PORT --token-file T [...]

Trains as a child of the parent at URL (ws://127.0.0.1:7777, wss://host:port), which says what to train: environment,
algorithm, net, settings, budget. This machine's own are --topology, --runtime, --actors, --envs, --backend, --learners and --seed.
A child that loses its parent trains on alone and rejoins; one that the parent tells to stop ends with exit code 0.

  --token-file T      the secret that the parent printed the place of
  --name NAME         under which the parent knows this child; a child that begins again takes its name again
  --pin FINGERPRINT   of the parent's certificate, as the parent printed it
  --listen HOST:PORT  wait for a parent that dials (shoal parent --children); beyond this machine with --cert and --key
  --trust-env         let the parent name an environment, algorithm or net by import path: code that is run here
  --out FOLDER        this child's run folder; by default runs/<env>-<algo>-<name>-<time>
  --quiet             no progress
  --json              one JSON object as the last line of standard output
"""


def run(words: list[str]) -> int:
    parsed = split(words, SWITCHES)
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    own = {name: parsed.options[name] for name in OWN if name in parsed.options}
    if len(parsed.positional) + ("listen" in own) != 1:
        raise BadInput("give the address of one parent, for example ws://127.0.0.1:7777, or --listen HOST:PORT")
    if "token-file" not in own:
        raise BadInput("--token-file is missing: the file with the secret that the parent admits")
    settings: dict[str, Any] = {
        name.replace("-", "_"): value for name, value in parsed.options.items() if name not in OWN
    }

    from shoal.federation.token_files import read_token

    token = read_token(own["token-file"])

    from shoal.federation.child import join

    quiet = "quiet" in parsed.switches
    joined = join(
        parsed.positional[0] if parsed.positional else None,
        token=token,
        name=own.get("name", ""),
        listen=own.get("listen"),
        pin=own.get("pin", ""),
        cert=own.get("cert"),
        key=own.get("key"),
        trust="trust-env" in parsed.switches,
        out=own.get("out"),
        quiet=quiet,
        settings=settings,
    )
    summary = joined.summary()
    if not quiet:
        told = f"{summary['exchanges']:,} exchanges, {summary['env_steps']:,} steps"
        print(f"{joined.child}: {summary['ended']}; {told}; run folder: {summary['run']}", file=sys.stderr)
    if "json" in parsed.switches:
        print(msgspec.json.encode(summary).decode(), flush=True)
    return 0
