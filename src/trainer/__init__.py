"""Trains a LoRA adapter: ``python -m trainer``, a process of its own that serves nothing.

The serving process imports ``spec`` only, which needs neither torch nor transformers.
"""
