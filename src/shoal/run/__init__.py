"""What a run leaves behind: folder, checkpoints, policy, metrics; and how it is shown while it lives.

Here live the run folder (`folder`), atomic checksummed files (`files`, `checkpoints`, `policy`), metric sinks
(`sinks`), the rows that sinks have written (`timeline`) and the live panel (`progress`). May import: `core`, `acting`;
`safetensors`, `tensorboardX`, `wandb`, `mlflow` and `rich` live here alone. You may change: add a sink as a class and a
line in `SINKS`; what a file contains, with its format number. Looking for who reads a folder and draws it? `observe`.
For what is worth saving? `launch`. For locks and signals? `process`.
"""
