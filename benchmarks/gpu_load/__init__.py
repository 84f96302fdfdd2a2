"""The benchmark `python -m gpu_load`: a core without a GPU, loads, callers, sides and rows."""
