"""The parts of `compare.py`: sides, loads, what processes use, files of figures, and rows."""
