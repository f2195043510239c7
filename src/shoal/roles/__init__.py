"""The loops: roles act, learn and serve, as generators that wait on ports.

May import: acting, learning, algos, nets, ops, core. Roles hold what changes; they know ports and no runtime, a contract and no
algorithm. You may change: a loop, as long as the same seed gives the same bits. Looking for how an unroll is made? `acting`. For
how weights change? `learning`. For the wiring between roles? `topologies`. For where they run? `runtimes`.
"""
