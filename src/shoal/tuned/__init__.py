"""Tuned settings, one entry per (environment, algorithm): the defaults of a run.

`total_envs` is divided among the actors, so that the batch does not depend on the number of cores; each of several workers with a
replay has all of them, and a worker that learns from its own unrolls at most `worker_envs`. `steps` is the default budget, and
schedules run over it. `algo_on` and `steps_on` replace settings on a topology. Entries under `*` hold for environments that are not
listed.

May import: nothing of Shoal. You may change: any entry, with the score that it reaches on seeds that it was not chosen on. Looking
for what an entry's names mean? `shoal train --help`. For how they become a run? `experiment`.
"""

from __future__ import annotations

from shoal.tuned.off_policy import OFF_POLICY
from shoal.tuned.on_policy import ON_POLICY, Settings

TUNED: dict[tuple[str, str], Settings] = {**ON_POLICY, **OFF_POLICY}

# Added to the entries for images. Scores of Atari games differ by orders of magnitude: only the sign of a reward is learnt
# from, and a lost life counts as an end (Mnih et al. 2015). Rewards of other image environments keep their proportions.
ATARI: Settings = {"life_ends": True, "algo": {"reward_clip": "sign"}}
OTHER_IMAGES: Settings = {"algo": {"normalise_reward": True}}


def tuned(env: str | None, algo: str, is_image: bool, atari: bool = False) -> Settings:
    """The entry for the id of an environment, or the general one if it has none. `ALE/Pong-v5` and `Pong-v5` are one game."""
    plain = TUNED.get(("*", algo), {"steps": 1_000_000, "total_envs": 16})
    known = TUNED.get((env.removeprefix("ALE/"), algo)) if env else None
    if not is_image or (known is None and ("image", algo) not in TUNED):
        return known or plain
    found, beside = known or TUNED["image", algo], ATARI if atari else OTHER_IMAGES
    return {**beside, **found, "algo": {**beside["algo"], **found["algo"]}}
