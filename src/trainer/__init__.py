"""Trains a LoRA adapter in its own process, which serves nothing: ``python -m trainer``.

The serving process imports only ``spec``, which needs neither torch nor transformers.
"""
