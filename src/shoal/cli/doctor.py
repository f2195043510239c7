"""`shoal doctor`: finds problems of an environment, and how to fix them."""

from __future__ import annotations

from shoal.cli.flags import one_positional, split

USAGE = """usage: shoal doctor ENV

Examines an environment: Gymnasium's own checks, seeding, truncation, autoreset, NaNs, spaces, speed. Exit code 1 if it found an
error, 0 otherwise.
"""


def run(words: list[str]) -> int:
    parsed = split(words, ("help",), ())
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    target = one_positional(parsed, "environment")
    from shoal.envs.doctor import examine

    findings = examine(target)
    for finding in findings:
        print(f"{finding.level}: {finding.what}")
        if finding.fix:
            print(f"    fix: {finding.fix}")
    worst = {finding.level for finding in findings}
    if "error" not in worst and "warning" not in worst:
        print(f"{target} is fit for training")
    return 1 if "error" in worst else 0
