"""The parts of `compare.py`: sides, loads, resource usage, result files, rows, and the command."""
