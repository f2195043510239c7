"""Environments: EnvPool, Gymnasium and JAX-native ones behind one interface.

This package holds the recipes (`source`), the batches that actors step (`envpool`, `gymnasium`, `jax_envs`), the
conversion of spaces (`spaces`), the class that normalises autoreset (`autoreset`) and the checks for a user's own
environment (`doctor`). May import: `core`, Gymnasium, EnvPool, JAX; no other package imports Gymnasium or EnvPool. You may
change: anything behind `EnvBatch`; a new backend is a file and a branch in `source`. Looking for the code that steps a
batch? `acting`. For the meaning of a slot's arrays? `core.trajectory`. For observation normalisation? `algos`, as part of
the actor's state.
"""
