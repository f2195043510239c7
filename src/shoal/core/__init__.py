"""What moves through Shoal, and through what it moves.

Here live the trajectory, the weights' layout, the specs, the ports, the program and the errors: the words that every
other room speaks. May import: NumPy, JAX, msgspec. You may change: a name, with its uses. Looking for maths? `ops`.
For loops? `roles`. For what implements a port? `runtimes`.

Glossary
    step         one transition of one environment
    unroll       T consecutive steps of an actor's B environments
    trajectory   the record of an unroll, time-major: `[T, B]`, observations `[T+1, B]`
    batch        what `prepare` makes of a trajectory: advantages, targets
    minibatch    the part of a batch that makes one gradient
    epoch        one pass over a batch
    update       everything learnt from one batch: prepare, then epochs x minibatches
    version      the number of updates behind a set of weights
    actor        who steps environments
    learner      who makes new weights
    topology     who acts, who learns, and what moves between them: a graph of roles joined by ports
    runtime      where the roles run, and how the ports are made
"""
