"""`shoal join`: trains on this machine as a child of a parent."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from shoal.cli.federation_flags import sort
from shoal.cli.flags import Words, split
from shoal.core.errors import BadInput

SWITCHES = ("quiet", "json", "trust-env", "help")
OWN = ("token-file", "name", "pin", "listen", "cert", "key", "out")

USAGE = """usage: shoal join URL --token-file T [--topology NAME] [--actors N] [--runtime NAME] [--envs N]
       shoal join --listen HOST:PORT --token-file T [...]

Trains as a child of the parent at URL (ws://127.0.0.1:7777, wss://host:port). The parent chooses environment, algorithm, net,
settings and budget; this machine chooses --topology, --runtime, --actors, --envs, --backend, --learners and --seed.
A child that loses its parent continues alone and reconnects; when the parent says that training is over, it ends with exit code 0.

  --token-file T      file with the parent's token; the parent prints its path
  --name NAME         the child's name at the parent; use the same name again after a restart
  --pin FINGERPRINT   fingerprint of the parent's certificate, as the parent printed it
  --listen HOST:PORT  wait for a parent that dials (shoal parent --children); other than loopback needs --cert and --key
  --trust-env         allow the parent to name an environment, algorithm or net by import path, which runs code on this machine
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
        raise BadInput("--token-file is missing: it names the file with the parent's token")
    settings: dict[str, Any] = {
        name.replace("-", "_"): value for name, value in parsed.options.items() if name not in OWN
    }

    from shoal.federation.token_files import read_token
    from shoal.process.memory import spare_memory

    token = read_token(own["token-file"])

    spare_memory()
    check_names(parsed)
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


def check_names(parsed: Words) -> None:
    """Raise `BadInput` for options that no child has, before it connects: a listening one may wait for its parent for hours."""
    from shoal.federation.settings import OWN as CHOSEN

    sort(parsed, OWN, [name.replace("_", "-") for name in CHOSEN])
    for flag in parsed.options:
        if flag not in OWN and flag.partition(".")[0].replace("-", "_") not in CHOSEN:
            raise BadInput(
                f"--{flag} is chosen by the parent; a child chooses {', '.join('--' + o for o in CHOSEN[:6])}"
            )
