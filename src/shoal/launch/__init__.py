"""The composition root: the only place where algorithm, topology and runtime meet.

`launch.run(plan)` is what everything that trains calls (`entry`). `compose` turns a plan into what a topology wires together,
`training` drives a session of it, answers its reports and writes its run folder, `saved` brings checkpoints and policies back
to life, `resuming` says what of a checkpoint fits, `evaluation` plays and films episodes of a fixed policy in a process of its
own (`stage` is what that process does), `checks` does so beside a training.
May import: everything below `api`. You may change: what a run decides and leaves behind, as long as a resumed run goes on bit
for bit. Looking for how settings are resolved? `experiment`. For what a person calls? `api`.
"""

from shoal.launch.entry import Result, run

__all__ = ["Result", "run"]
