"""Shared vocabulary: the data that moves through Shoal and the ports that move it.

This package holds the trajectory, the weight layout, the specs, the ports, the program and the errors that all other
packages use. May import: NumPy, JAX, msgspec. You may change: a name, with its uses. Looking for maths? `ops`.
For loops? `roles`. For implementations of a port? `runtimes`.

Glossary
    step         one transition of one environment
    unroll       T consecutive steps of an actor's B environments
    trajectory   the record of an unroll, time-major: `[T, B]`, observations `[T+1, B]`
    batch        the output of `prepare` on a trajectory: advantages, targets
    minibatch    the part of a batch behind one gradient
    epoch        one pass over a batch
    update       all learning from one batch: prepare, then epochs x minibatches
    version      the number of updates behind a set of weights
    actor        a role that steps environments
    learner      a role that makes new weights
    topology     a graph of roles joined by ports: which roles act, which learn, and what moves between them
    runtime      where the roles run, and how the ports are implemented
"""
