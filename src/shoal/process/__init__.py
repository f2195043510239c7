"""How a process behaves: device and threads, limits, signals, the parent's death, restarts, child commands, run locks.

Here live `device` (JAX, its threads and its compilation cache), `limits` (cores and memory of a control group), `lifetime` (no
process outlives its parent), `signals` (SIGINT and SIGTERM), `restarts` (a killed run begins again from its checkpoint),
`commands` (Shoal's own commands as child processes), `lock` (one training in a folder) and `mpi_environment` (what an MPI
launcher says). May import: core. You may change: anything that keeps a second signal an immediate exit. Looking for processes that
run roles? `runtimes`. For what a run writes? `run`.
"""
