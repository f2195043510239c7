"""Check the documentation: every link and anchor leads somewhere, every `shoal` command and its flags exist.

python docs/check.py        exit code 1 and one line per mistake
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

from shoal.cli.main import main as shoal

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]+src=\"([^\"]+)\"")
COMMAND = re.compile(r"^(?:\s{4,}|\s*\$ |\s*)((?:\.venv/bin/)?shoal\s+[a-z-].*)$")
AXES = ("--algo", "--topology", "--runtime")


def pages() -> list[Path]:
    folders = [ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md"), (ROOT / "benchmarks").glob("*.md")]
    return sorted(path for found in folders for path in found)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", without_code(text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def bad_links(page: Path) -> list[str]:
    text, mistakes = page.read_text(), []
    plain = without_code(text)
    targets = LINK.findall(plain) + [one or other for one, other in IMAGE.findall(plain)]
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere: checking it would need a network
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.exists() and not made_later(aim):
            mistakes.append(f"{target}: no such file")
        elif anchor and aim.suffix == ".md" and anchor not in anchors(aim.read_text()):
            mistakes.append(f"{target}: no such heading")
    return mistakes


def made_later(path: Path) -> bool:
    """Whether `make bench` writes this file, which may be missing in a fresh clone."""
    return path.is_relative_to(ROOT / "benchmarks" / "results")


def commands(text: str) -> list[str]:
    """Lines of code blocks that call `shoal`, without their comments."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            found = COMMAND.match(line)
            lines += [re.split(r"\s+#\s", found[1])[0].strip()] if found else []
    return lines


@cache
def help_of(*words: str) -> str:
    """The help text of a command, printed in this process: dozens of interpreters would take a minute."""
    printed, code = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            shoal([*words, "--help"])
    except SystemExit as end:
        code = end.code
    return printed.getvalue() if code == 0 else ""


def bad_command(line: str) -> str | None:
    """Why a command of the documentation would be refused, None if its names are right."""
    words = shlex.split(line.replace("[", "").replace("]", ""))[1:]
    if words[0].startswith("--"):
        return None if words[0] in help_of() else f"no option {words[0]}"
    if not re.search(rf"^\s*{re.escape(words[0])}\b", help_of(), re.MULTILINE):
        return f"no command {words[0]!r}"
    # The settings on show depend on what is chosen on each axis.
    pairs = [(a, b) for a, b in pairwise(words) if a in AXES and re.fullmatch(r"[a-z_0-9]+", b)]
    text = help_of(words[0], *(word for pair in pairs for word in pair))
    if words[1:] and words[1].isalpha() and re.search(rf"shoal {words[0]} {words[1]}\b", text):  # a command of its own
        text = help_of(*words[:2])
    if not text:
        return "its --help fails"
    known = {flag.replace("_", "-") for flag in re.findall(r"--[a-z][a-z_.-]*", text)}
    for word in words[1:]:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            return f"no option {flag}"
    return None


def main() -> int:
    mistakes = []
    for page in pages():
        name = page.relative_to(ROOT)
        mistakes += [f"{name}: {mistake}" for mistake in bad_links(page)]
        for line in commands(page.read_text()):
            reason = bad_command(line)
            mistakes += [f"{name}: `{line}`: {reason}"] if reason else []
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    if not mistakes:
        print(f"{len(pages())} pages: links, anchors and commands hold")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
