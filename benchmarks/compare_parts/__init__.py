"""The parts of `compare.py`: conditions, sides, loads, usage, files, rows, and the command."""
