"""`shoal eval`: evaluates a run's policy on fresh episodes in Gymnasium's own environment."""

from __future__ import annotations

import sys

import msgspec

from shoal.cli import baseline
from shoal.cli.flags import one_positional, split, whole_number

USAGE = """usage: shoal eval RUN [--episodes N] [--sample] [--seed S] [--json] [--quiet]
       shoal eval --baseline pi|pi-tuned shoal/Booster-v0 [--episodes N] [--seed S] [--json] [--quiet]

Plays N whole episodes (100) with the run's last checkpoint, or with the checkpoint file given: greedy, or with sampled actions
(--sample). --json prints one JSON object as the last line of standard output.
--baseline plays a regulator that needs no training: on the booster's surrogate, then on its plant, a JSON line for each.
"""


def run(words: list[str]) -> int:
    parsed = split(words, ("sample", "json", "quiet", "help"), ("episodes", "seed", "baseline"))
    if "help" in parsed.switches:
        print(USAGE, end="")
        return 0
    if "baseline" in parsed.options:
        return baseline.run(parsed)
    path = one_positional(parsed, "run folder")
    episodes = whole_number(parsed, "episodes", 100)
    seed = whole_number(parsed, "seed", 0, least=0) if "seed" in parsed.options else None
    from shoal import api

    run = api.load(path)
    quiet = "quiet" in parsed.switches
    with _progress(episodes, quiet) as advance:
        result = run.evaluate(episodes, sample="sample" in parsed.switches, seed=seed, on_episode=advance)
    if not quiet:
        span = "" if result.ci is None else f" (95 % interval {result.ci[0]:.1f} to {result.ci[1]:.1f})"
        kind = "greedy" if result.greedy else "sampled"
        kept = f"; kept in {run.folder.evaluation_path}" if run.folder.checkpoint is None else ""
        broken = f"; {result.faults} more broke (faults.log)" if result.faults else ""
        print(
            f"mean {result.mean:.1f}{span}, sd {result.sd:.1f}, interquartile mean {result.iqm:.1f} over {episodes} {kind}"
            f" episodes{broken}{kept}",
            file=sys.stderr,
        )
    if "json" in parsed.switches:
        known = {k: run.summary.get(k) for k in ("env", "algo", "topology", "runtime", "seed")}
        line = {
            **known,
            "env_steps": result.env_steps,
            "eval_mean": result.mean,
            "eval_sd": result.sd,
            "eval_iqm": result.iqm,
            "eval_ci": result.ci,
            "eval_episodes": result.episodes,
            "eval_faults": result.faults,
            "greedy": result.greedy,
            "run": str(run.path),
        }
        print(msgspec.json.encode(line).decode(), flush=True)
    return 0


class _progress:
    """A bar of episodes on a terminal, nothing elsewhere."""

    def __init__(self, episodes: int, quiet: bool) -> None:
        self._bar = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("episodes", total=episodes)

    def __enter__(self) -> _progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __call__(self, ret: float) -> None:
        if self._bar is not None:
            self._bar.advance(self._task)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
