"""Requests before vLLM computes them: what they may hold, and what is said of a refusal."""
