"""`shoal federation token`: issues and revokes secrets of single children while their parent runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shoal.cli.flags import Words, one_positional, split
from shoal.core.errors import BadInput, nearest

COMMANDS = ("add", "list", "revoke")
USAGE = """usage: shoal federation token add RUN --child NAME [--file T] [--replace]
       shoal federation token list RUN [--json]
       shoal federation token revoke RUN --child NAME
       shoal federation token revoke RUN --shared

Tokens of the parent whose run folder is RUN; a running parent notices changes within a second. Each token admits one child by its
name (shoal join --name NAME). RUN/tokens.json contains only SHA-256 hashes, and only its owner can read it.

add     writes a new secret to its own file, for `shoal join --token-file`
list    shows which children the tokens admit, and which tokens were revoked
revoke  stops admitting a child; if it is connected, it is told the reason and disconnected

  --child NAME    name of the child
  --file T        file for the secret; by default RUN/token-NAME
  --replace       revoke this child's older token
  --shared        the token that admits any child, RUN/token
  --json          one JSON object as the last line of standard output
"""


def run(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        if words and not {"--help", "-h"} & set(words):
            raise BadInput(f"unknown option {words[0]!r}. See shoal federation token --help.")
        print(USAGE, end="")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        raise BadInput(f"unknown command 'federation token {command}'.{nearest(command, COMMANDS)}")
    switches = {"add": ("replace",), "list": ("json",), "revoke": ("shared",)}[command]
    options = {"add": ("child", "file"), "list": (), "revoke": ("child",)}[command]
    parsed = split(rest, (*switches, "help"), options)
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    folder = Path(one_positional(parsed, "run folder of a parent"))
    return {"add": _add, "list": _list, "revoke": _revoke}[command](parsed, folder)


def _add(parsed: Words, folder: Path) -> int:
    from shoal.federation.token_files import TokenRegister, make_token

    child = child_of(parsed)
    register = TokenRegister.of_run(folder)
    path = Path(parsed.options.get("file", folder / f"token-{child}"))
    with register.changing() as tokens:
        if any(token.child == child and not token.revoked for token in tokens.tokens):
            if "replace" not in parsed.switches:
                raise BadInput(f"{child!r} has a token already; --replace revokes it")
            tokens.revoke(child)
            if "file" not in parsed.options:
                path.unlink(missing_ok=True)
        tokens.admit(make_token(path), child)
    print(f"{child} joins with --name {child} --token-file {path}", file=sys.stderr)
    print(path)
    return 0


def _list(parsed: Words, folder: Path) -> int:
    from shoal.federation.guard import ANY
    from shoal.federation.token_files import TokenRegister

    tokens = TokenRegister.of_run(folder).read().tokens
    if "json" in parsed.switches:
        listed = [
            {"child": None if t.child == ANY else t.child, "revoked": t.revoked, "sha256": t.digest} for t in tokens
        ]
        print(json.dumps({"tokens": listed}), flush=True)
        return 0
    print(f"{'child':<24} {'':<8} sha256")
    for token in tokens:
        whom = "any child" if token.child == ANY else token.child
        print(f"{whom:<24} {'revoked' if token.revoked else 'valid':<8} {token.digest[:16]}")
    return 0


def _revoke(parsed: Words, folder: Path) -> int:
    from shoal.federation.guard import ANY
    from shoal.federation.token_files import TokenRegister

    if ("shared" in parsed.switches) == ("child" in parsed.options):
        raise BadInput("expected either --child NAME or --shared, to say which token to revoke")
    child = ANY if "shared" in parsed.switches else child_of(parsed)
    whose = "the shared token" if child == ANY else f"the token of {child!r}"
    with TokenRegister.of_run(folder).changing() as tokens:
        if not tokens.revoke(child):
            known = {t.child for t in tokens.tokens if not t.revoked and t.child != ANY}
            raise BadInput(f"{whose} is not among the valid ones.{nearest(child, known)}")
    print(f"{whose} was revoked", file=sys.stderr)
    return 0


def child_of(parsed: Words, what: str = "the name of the child that the token admits") -> str:
    """The child of --child. `BadInput` if it is missing or no valid name."""
    if "child" not in parsed.options:
        raise BadInput(f"--child is missing: {what}")
    return checked_name("--child", parsed.options["child"])


def checked_name(flag: str, name: str) -> str:
    """The name of a child, as the protocol allows it. `BadInput` otherwise."""
    import msgspec

    from shoal.federation.wire import Name

    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise BadInput(f"{flag} is {name!r}: 1 to 64 of A-Z a-z 0-9 _ . - that begin with a letter or digit") from None
