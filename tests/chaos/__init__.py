"""Scenarios that disturb the real worker many times (``nox -s chaos``)."""
