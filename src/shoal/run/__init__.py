"""What a run leaves behind: folder, checkpoints, policy, metrics; and how it is shown and stopped while it lives.

Here live the run folder (`folder`), atomic checksummed files (`files`, `checkpoints`, `policy`), metric sinks
(`sinks`), the live panel (`progress`) and the answer to SIGINT and SIGTERM (`signals`). May import: `core`;
`safetensors`, `tensorboardX`, `wandb`, `mlflow` and `rich` live here alone. You may change: add a sink as a class and a
line in `SINKS`; what a file contains, with its format number. Looking for who reads a folder and draws it? `observe`.
For what is worth saving? `launch`.
"""
