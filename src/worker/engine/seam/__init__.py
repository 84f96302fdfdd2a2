"""Where the worker meets vLLM: its names, its types, its exceptions, and what is patched of it."""
