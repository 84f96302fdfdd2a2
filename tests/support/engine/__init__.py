"""Scripted engines and servers, cores without processes, cores that hang, and requests."""
