"""Serves the worker's API over plain HTTP, without a platform; most requests become jobs."""
