"""Batches: files of requests that are answered over hours, by one worker after the other.

A batch is a directory on the volume. Each file in it is written once, or has one writer that only
appends; what a batch's state is follows from which of them exist. So a worker can be killed at any
line, and the next one goes on.
"""
