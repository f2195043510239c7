"""Acting: a policy steps environments and fills slots with unrolls.

This package holds the collector of one actor's unrolls (`collector`), the compiled step of a policy (`compiled_act`), batched
inference for many actors (`inference`), random actions on top of a policy (`random_actions`), episodes extracted from unrolls
(`episodes`) and the player of whole episodes with a fixed policy (`player`). May import: algos, nets, ops, core. You may
change: anything that gives the same actions for the same keys. Looking for the loops that call these? `roles`. For learning
from an unroll? `learning`. For environments? `envs`.
"""
