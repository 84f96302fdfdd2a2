"""The parts of `compare.py`: sides, loads, resource usage, result files, and rows."""
