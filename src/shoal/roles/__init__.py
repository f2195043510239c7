"""The loops: who acts and who learns, as generators that wait on ports.

May import: algos, nets, ops, core. Roles hold what changes; they know ports and no runtime, a contract and no
algorithm. You may change: a loop, as long as the same seed gives the same bits.
Looking for the wiring between roles? `topologies`. For where they run? `runtimes`.
"""
