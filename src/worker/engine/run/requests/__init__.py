"""Checks of requests before vLLM computes them, and messages for refused requests."""
