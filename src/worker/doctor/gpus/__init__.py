"""Judges on which of the platform's GPUs a model fits, without such a GPU (``--check --gpu``)."""
