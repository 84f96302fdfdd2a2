"""The interface to vLLM: its names, types and exceptions, and patches of its objects."""
