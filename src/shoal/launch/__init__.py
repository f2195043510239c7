"""The composition root: the only place where algorithm, topology and runtime meet.

`compose` turns a plan into what a topology wires together, `training` drives a session of it and writes its run folder,
`saved` brings checkpoints and policies back to life, `evaluation` plays episodes of a fixed policy. May import everything
below `api`; settings are resolved before, in `experiment`, and what a person calls is in `api`.
"""
