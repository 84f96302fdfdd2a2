"""Judges on which of the platform's GPUs a model fits, without having one (``--check --gpu``)."""
