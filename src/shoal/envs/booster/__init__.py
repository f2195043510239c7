"""Regulation of an accelerator's booster magnets on synthetic data: the plant, its recorded series, the environments.

This package holds the plant's equations (`plant`), recorded series and a user's own CSV (`series`), the network that predicts
the next error (`surrogate`), the environment as pure functions (`task`), its Gymnasium form and ids (`gym`) and the
regulators to compare with (`regulator`). All figures come from a synthetic plant, not from an accelerator. May import: `core`,
`envs.jax_envs`, Gymnasium, JAX, optax. You may change: the plant's equations, then run `python -m
shoal.envs.booster.surrogate` to fit the stored weights again. Looking for the ids that Shoal resolves? `envs.registry`.
"""
