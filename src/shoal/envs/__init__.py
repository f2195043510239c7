"""Where experience comes from: EnvPool, Gymnasium, JAX-native environments, and one way to see all of them.

Here live the recipes (`source`), the batches that actors step (`envpool`, `gymnasium`, `jax_envs`), the conversion of
spaces (`spaces`), the one class that normalises autoreset (`autoreset`) and the examination of somebody's own
environment (`doctor`). May import: `core`, Gymnasium, EnvPool, JAX; nobody else imports Gymnasium or EnvPool. You may
change: anything behind `EnvBatch`; a new backend is a file and a branch in `source`. Looking for who steps a batch?
`roles`. For what a slot's arrays mean? `core.trajectory`. For observation normalisation? `algos`, as part of the state
that travels.
"""
