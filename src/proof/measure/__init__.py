"""Sides, loads and their figures, for the proof and for the benchmarks."""
