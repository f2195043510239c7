"""The command line: one file per command.

May import everything below. Each command parses its words with `flags`, calls the packages below, and prints. To add one: its
file and one line in `main.COMMANDS`. Nothing heavy is imported before the command is known, so that `shoal --help` is quick.
Looking for what a flag does? See the settings' docstrings in `experiment` and beside each algorithm, topology, runtime and net.
"""
