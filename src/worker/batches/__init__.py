"""Batches: files of requests that successive workers answer over hours.

A batch is a directory on the volume. Each of its files is written once, or is only appended to by
its one writer. The state of a batch follows from which of these files exist, so a worker can be
killed at any line and the next one continues.
"""
