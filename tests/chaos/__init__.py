"""Faults, signals, cancels and freezes in numbers, against the real worker (``make chaos``)."""
