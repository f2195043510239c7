"""Runtimes: where roles run. Each makes the ports, places the roles, and hands the main role's reports to the caller.

May import: roles and below. Threads, worker processes and their fences belong only here. To add one: its file, one line in
`RUNTIMES`, and the port contract tests over it. Looking for the roles' loops? `roles`. For which role talks to which? `topologies`.
"""

from __future__ import annotations

from shoal.runtimes.fused import Fused
from shoal.runtimes.inline import Inline
from shoal.runtimes.mpi import Mpi
from shoal.runtimes.processes import Processes
from shoal.runtimes.session import Runtime
from shoal.runtimes.threads import Threads

RUNTIMES: dict[str, type[Runtime]] = {
    "fused": Fused,
    "inline": Inline,
    "mpi": Mpi,
    "processes": Processes,
    "threads": Threads,
}
