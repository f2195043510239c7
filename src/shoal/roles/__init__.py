"""The loops: roles act, learn and serve, as generators that wait on ports.

May import: acting, learning, algos, nets, replay, ops, process, core. Roles hold the mutable state; they know ports but no
runtime, and a contract but no algorithm (except for `dyna`). You may change: a loop, as long as the same seed gives the same
bits. Looking for how an unroll is made? `acting`. For how weights change? `learning`. For the wiring between roles?
`topologies`. For where they run? `runtimes`.
"""
