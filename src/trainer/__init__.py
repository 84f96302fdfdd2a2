"""Trains a LoRA adapter in its own process, which serves no requests: ``python -m trainer``.

The serving process imports only ``spec``, which needs neither torch nor transformers.
"""
