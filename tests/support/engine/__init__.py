"""Scripted engines and servers, cores that hang or are none, and requests of real engines."""
