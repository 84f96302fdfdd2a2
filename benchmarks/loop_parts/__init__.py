"""The parts of benchmarks/loop.py, and the endpoint that they measure."""
