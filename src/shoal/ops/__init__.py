"""Pure maths without state: returns, losses, distributions, running statistics, schedules.

This package holds functions whose signature is the equation: batched, time-major (`[T, B]`), in the paper's symbols. They
take NumPy or JAX arrays and run under jit. May import: JAX, NumPy, `core`. You may change: anything that keeps its oracle in
`tests/ops` green. Looking for networks? `nets`. For complete losses of algorithms? `algos`. For the state that holds
statistics? `core.algorithm`.
"""
