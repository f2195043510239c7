"""`shoal eval --baseline`: regulators that need no training, on the environments that have one."""

from __future__ import annotations

import sys

import msgspec

from shoal.cli.flags import Words, one_positional, whole_number
from shoal.core.errors import BadInput, nearest


def run(parsed: Words) -> int:
    """Play whole episodes of the booster, on its surrogate and on its plant, and print mean and standard deviation."""
    from shoal.envs.booster.ids import IDS, JUDGED_ON
    from shoal.envs.booster.regulator import BASELINES, regulate
    from shoal.envs.booster.task import Booster
    from shoal.studies import statistics

    if "sample" in parsed.switches:
        raise BadInput("--sample does not go with --baseline: a regulator has no distribution to sample from")
    baseline = parsed.options["baseline"]
    if baseline not in BASELINES:
        raise BadInput(
            f"--baseline is {baseline!r}; it must be one of {', '.join(BASELINES)}.{nearest(baseline, BASELINES)}"
        )
    name = one_positional(parsed, "environment")
    if name not in IDS:
        raise BadInput(f"environment {name!r} has no baseline; those that have: {', '.join(IDS)}.{nearest(name, IDS)}")
    episodes = whole_number(parsed, "episodes", 100)
    seed = whole_number(parsed, "seed", 0, least=0)
    for shown in (name, JUDGED_ON[name]) if name in JUDGED_ON else (name,):
        played = regulate(Booster(None, **IDS[shown]), BASELINES[baseline], episodes, seed)
        summary = statistics.summarise([float(ret) for ret in played.returns])
        if "quiet" not in parsed.switches:
            where = "synthetic plant" if IDS[shown].get("plant") else "surrogate"
            print(
                f"{baseline} on {shown} ({where}): mean {summary.mean:.1f}, sd {summary.sd:.1f} over {episodes} episodes",
                file=sys.stderr,
            )
        if "json" in parsed.switches:
            line = {
                "env": shown,
                "baseline": baseline,
                "seed": seed,
                "eval_mean": summary.mean,
                "eval_sd": summary.sd,
                "eval_iqm": summary.iqm,
                "eval_ci": summary.ci,
                "eval_episodes": episodes,
            }
            print(msgspec.json.encode(line).decode(), flush=True)
    return 0
