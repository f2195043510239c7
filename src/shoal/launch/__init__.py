"""The composition root: the only place where algorithm, topology and runtime meet.

Everything that trains calls `launch.run(plan)` (`entry`). `compose` turns a plan into a topology's blueprint, `training`
drives a session of it, answers its reports and writes its run folder, `outcome` holds its counts, `saved` restores
checkpoints and policies, `resuming` decides which parts of a checkpoint fit, `evaluation` plays and films episodes of a
fixed policy in a process of its own (`stage` is that process's code), and `checks` does so beside a training.
May import: everything below `api`. You may change: a run's decisions and files, as long as a resumed run continues bit for
bit. Looking for how settings are resolved? `experiment`. For the functions that a user calls? `api`.
"""

from shoal.launch.entry import Result, run

__all__ = ["Result", "run"]
