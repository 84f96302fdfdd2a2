"""Measures the worker on this machine, with vLLM's own server on the same engine for comparison."""
