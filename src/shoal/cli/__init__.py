"""The command line: one file a command.

May import everything below. Each command parses its words with `flags`, calls `shoal.api`, and prints. To add one: its file and one
line in `main.COMMANDS`. Nothing heavy is
imported before the command is known, so that `shoal --help` is quick. Looking for what a flag does? The settings' docstrings
in `experiment` and beside each algorithm, topology, runtime and net.
"""
