"""Outputs of models for all parsers of vLLM, and the answers that a client joins of a stream."""
