"""Scenarios that disturb the real worker many times (``make chaos``)."""
