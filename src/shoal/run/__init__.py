"""A run's output: folder, checkpoints, policy, metrics, and the live display.

This package holds the run folder (`folder`), atomic checksummed files (`files`, `checkpoints`, `policy`), metric sinks
(`sinks`), the rows that sinks have written (`timeline`) and the live display (`live`, `progress`). May import: `core`, `acting`;
only this package imports `safetensors`, `tensorboardX`, `wandb`, `mlflow` and `rich`. You may change: add a sink as a class
and a line in `SINKS`; a file's contents, with its format number. Looking for the code that reads a folder and draws it?
`observe`. For the choice of what is saved? `launch`. For locks and signals? `process`.
"""
