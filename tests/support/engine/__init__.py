"""An engine, and vLLM's server, that play a script."""
