"""Pure maths without state: returns, losses, distributions, running statistics, schedules.

Here live functions whose signature is the equation: batched, time-major (`[T, B]`), in the paper's symbols. They take
NumPy or JAX arrays and run under jit. May import: JAX, NumPy, `core`. You may change: anything that keeps its oracle in
`tests/ops` green. Looking for networks? `nets`. For what puts a loss together? `algos`. For the state that statistics
live in? `core.algorithm`.
"""
