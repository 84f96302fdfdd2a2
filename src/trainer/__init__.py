"""Trains a LoRA adapter in its own process, which serves no requests: ``python -m trainer``.

The worker starts it, and writes what it has to do: see ``worker.fine_tunes.spec``.
"""
