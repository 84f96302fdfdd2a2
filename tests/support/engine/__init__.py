"""Scripted engines, connections to their server, cores without processes, and worker classes."""
