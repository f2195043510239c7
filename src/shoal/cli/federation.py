"""`shoal federation`: status of a parent, a complete federation on this machine, tokens, certificates."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from shoal.cli.federation_flags import configured, finished, help_of, sort, write_report
from shoal.cli.flags import one_positional, split, whole_number
from shoal.core.errors import BadInput, RunFailed, nearest

COMMANDS = ("status", "local", "token", "forgive", "cert")
USAGE = """usage: shoal federation status URL --token-file T [--pin FINGERPRINT] [--json]
       shoal federation local ENV --children N [--topology NAME] [--actors N] [--FIELD VALUE ...]
       shoal federation local --resume RUN [--FIELD VALUE ...]
       shoal federation token add|list|revoke RUN [--child NAME] [...]
       shoal federation forgive RUN --child NAME
       shoal federation cert [--cert FILE] [--key FILE] [--host NAME,ADDRESS] [--days N]

status  shows a parent's children with their contributions, lags and strikes
local   runs a parent and its children on this machine with one command; takes the options of `shoal parent`, and passes
        --topology, --runtime, --actors, --envs, --backend and --learners on to the children
token   issues and revokes secrets of single children while their parent runs
forgive ends the quarantine of a child, at a running parent at once, otherwise when it is resumed
cert    creates a self-signed certificate for --cert and --key, and prints its fingerprint for `shoal join --pin`

  --children N    number of children, each a process (2)
  --slow F,F,...  slow children down by these factors, in order (1: full speed), to imitate unequal machines; not with
                  --runtime processes, whose workers would keep their speed
  --out FOLDER    the parent's run folder; those of the children are in its subfolder children/
  --resume RUN    continue a run from its last checkpoint, with new processes of the same children
  --quiet         no progress
  --json          one JSON object as the last line of standard output
"""
LOCAL_OWN = ("out", "resume", "children", "slow", "config", "bind")
SLOWEST = 100.0  # times
PASSED = ("topology", "runtime", "actors", "envs", "backend", "learners")


def run(words: list[str]) -> int:
    if not words:
        print(USAGE, end="")
        return 0
    if words[0].startswith("-") and {"--help", "-h"} & set(words):
        print(help_of(USAGE))
        return 0
    command, *rest = words
    if command not in COMMANDS:
        raise BadInput(
            f"unknown command 'federation {command}'.{nearest(command, COMMANDS)} See shoal federation --help."
        )
    if command == "token":
        from shoal.cli.federation_tokens import run as tokens

        return tokens(rest)
    return {"status": _status, "local": _local, "forgive": _forgive, "cert": _cert}[command](rest)


def _status(words: list[str]) -> int:
    parsed = split(words, ("json", "help"), ("token-file", "pin"))
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    url = one_positional(parsed, "address of a parent")
    if "token-file" not in parsed.options:
        raise BadInput("--token-file is missing: it names the file with the parent's token")

    from shoal.federation.status import ask
    from shoal.federation.token_files import read_token

    report = ask(url, read_token(parsed.options["token-file"]), parsed.options.get("pin", ""))
    if "json" in parsed.switches:
        print(json.dumps(report), flush=True)
        return 0
    print(f"{report['run']}: {report['rule']}, version {report['version']:,}, {report['pushes']:,} pushes")
    print(f"{report['env_steps']:,} steps, {report['episodes']:,} episodes, {report['rejected']} rejected")
    print(
        f"{'child':<24} {'':<8} {'pushes':>8} {'share':>6} {'steps':>12} {'steps/s':>9}"
        f" {'lag':>5} {'distance':>9} {'strikes':>7}"
    )
    for child in report["children"]:
        where = "here" if child["present"] else "away"
        print(
            f"{child['child']:<24} {where:<8} {child['pushes']:>8,} {child['share']:>6.0%} {child['steps']:>12,}"
            f" {child['steps_per_s']:>9,.0f} {child['staleness']:>5} {child['distance']:>9.3g} {child['strikes']:>7}"
        )
    if report["unlisted"]:
        print(f"and {report['unlisted']:,} children with fewer pushes")
    return 0


def _local(words: list[str]) -> int:
    parsed = split(words, ("quiet", "json", "no-report", "help"))
    if "help" in parsed.switches:
        print(help_of(USAGE))
        return 0
    resume = parsed.options.get("resume")
    env = one_positional(parsed, "environment") if resume is None or parsed.positional else None

    from shoal.federation.local import Asked

    before = None if resume is None else Asked.read(Path(resume))
    count = whole_number(parsed, "children", 2 if before is None else before.children)
    sorted_ = sort(parsed, LOCAL_OWN)
    passed = {n: v for n, v in sorted_.settings.items() if n.partition(".")[0] in PASSED}
    asked = Asked(count, sorted_.own.get("slow", ""), passed) if before is None else before.changed(sorted_.own, passed)
    slow = _slow(asked.slow, count)
    if slow and asked.passed.get("runtime") == "processes":
        raise BadInput("--slow and --runtime processes: a child's workers would keep their speed; use threads")
    if before is None or before.children != count:
        sorted_.federation.setdefault("expect", str(count))
    given = configured(sorted_)

    from shoal.cli.parent import settings_of
    from shoal.federation.local import LocalChildren
    from shoal.federation.parent import Parent
    from shoal.launch.entry import say
    from shoal.process.limits import cores

    settings, env = settings_of(sorted_.settings, sorted_.own, [env] if env is not None else [])
    flags = [f"--{n.replace('_', '-')}={v}" for n, v in {"actors": max(1, cores() // count), **asked.passed}.items()]
    about: dict[str, Any] = {n: v for n, v in settings.items() if n == "topology" or n not in PASSED}
    out = sorted_.own.get("out")
    quiet = "quiet" in parsed.switches
    children: LocalChildren | None = None
    parent = Parent(
        env,
        out=out,
        resume=resume,
        bind=sorted_.own.get("bind", "127.0.0.1:0"),
        quiet=quiet,
        over=lambda: children is not None and children.over(),
        **given,
        **about,
    )
    needed = parent.hub.federation.rule.quorum
    if needed > count:
        parent.folder.discard()
        raise BadInput(f"--rule {parent.config.rule} needs the pushes of {needed} children, and --children is {count}")
    try:
        with parent, LocalChildren(count, parent.folder.folder.path / "children", flags, say, slow) as children:
            asked.write(parent.folder.folder)
            children.start(parent.url, parent.token_file)
            summary = parent.run()
    except BadInput:
        if not parent.hub.state.pushes and parent.folder.folder.path.exists():  # a child was refused: leave no folder
            parent.folder.discard()
        raise
    write_report(summary["run"], wanted="no-report" not in parsed.switches and not summary["stopped"])
    finished(summary, quiet=quiet, json="json" in parsed.switches)
    if summary["ended"] == "children" and children.lost:
        raise RunFailed(
            f"all children were lost ({', '.join(children.lost)}) after {summary['env_steps']:,} steps;"
            f" the parent's last weights were kept; shoal federation local --resume {summary['run']} continues"
        )
    return 0


def _slow(text: str, count: int) -> list[float]:
    """The factors of --slow, at most one for each child."""
    try:
        factors = [float(word) for word in text.split(",")] if text else []
    except ValueError:
        raise BadInput(f"--slow is {text!r}: expected numbers with commas between them, such as 1,2") from None
    if any(not 1.0 <= factor <= SLOWEST for factor in factors):
        raise BadInput(f"--slow is {text!r}: each factor must lie in [1, {SLOWEST:g}]")
    if len(factors) > count:
        raise BadInput(f"--slow has {len(factors)} factors for {count} children")
    return factors


def _forgive(words: list[str]) -> int:
    parsed = split(words, ("help",), ("child",))
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    folder = Path(one_positional(parsed, "run folder of a parent"))

    from shoal.cli.federation_tokens import child_of
    from shoal.federation import pardons
    from shoal.federation.token_files import TokenRegister

    child = child_of(parsed, "the name of the child to forgive")
    TokenRegister.of_run(folder)  # raises for a folder of something else
    pardons.leave(folder, child)
    print(f"{child!r} will be forgiven", file=sys.stderr)
    return 0


def _cert(words: list[str]) -> int:
    parsed = split(words, ("help",), ("cert", "key", "host", "days"))
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    if parsed.positional:
        raise BadInput(f"shoal federation cert takes only options, not {parsed.positional[0]!r}")

    from shoal.federation.addresses import fingerprint_of
    from shoal.process.openssl import make_certificate

    cert, key = Path(parsed.options.get("cert", "cert.pem")), Path(parsed.options.get("key", "key.pem"))
    hosts = parsed.options.get("host", "localhost,127.0.0.1")
    names = [name for name in hosts.split(",") if name]
    if not names:
        raise BadInput(f"--host is {hosts!r}: expected at least one host name or address")
    make_certificate(cert, key, names, whole_number(parsed, "days", 365))
    print(f"certificate {cert}, key {key}", file=sys.stderr)
    print(f"fingerprint {fingerprint_of(cert)}")
    return 0
