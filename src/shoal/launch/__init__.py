"""The composition root: the only place where algorithm, topology and runtime meet.

`compose` turns a plan into what a topology wires together, `training` drives a session of it and writes its run folder,
`saved` brings checkpoints and policies back to life, `resuming` says what of a checkpoint fits, `evaluation` plays and films
episodes of a fixed policy in a process of its own (`stage` is what that process does), `checks` does so beside a training.
May import: everything below `api`. You may change: what a run decides and leaves behind, as long as a resumed run goes on bit
for bit. Looking for how settings are resolved? `experiment`. For what a person calls? `api`.
"""
