"""Trains a LoRA adapter: ``python -m worker.trainer``, a process of its own that serves nothing.

The serving process imports ``spec`` only, which needs neither torch nor transformers.
"""
