"""Process behaviour: device and threads, limits, signals, the parent's death, restarts, child commands, run locks.

This package holds `device` (JAX, its threads and its compilation cache), `compile_ahead` (compiled functions kept between
runs), `memory` (memory that compilations leave behind), `limits` (cores and memory of a control group), `lifetime` (no
process outlives its parent), `signals` (SIGINT, SIGTERM and SIGUSR1), `restarts` (a killed run resumes from its checkpoint),
`commands` (Shoal's own commands as child processes), `lock` (one training in a folder) and `mpi_environment` (an MPI
launcher's variables). May import: core. You may change: anything that keeps a second signal an immediate exit. Looking for
processes that run roles? `runtimes`. For a run's files? `run`.
"""
