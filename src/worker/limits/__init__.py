"""Limits for the contents of requests, checked before the engine sees them."""
