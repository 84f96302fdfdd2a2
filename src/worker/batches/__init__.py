"""Batches: files of requests that successive workers answer over hours.

A batch is a directory on the volume. Each of its files is written once, or is only appended to by
its one writer. The state of a batch follows from which of these files exist, so a worker can be
killed at any line and the next one continues.

A job repeats a ``BatchStep`` (``run``). The first step validates the input and divides it into
shards, the plan (``lines``). Each of the next ones answers the lines of a shard under its lease, as
many at a time as a ``SlotWindow`` leaves to batches (``window``), and appends their results to a
part of its own (``parts``). The last step decides how the batch ends, assembles the output file and
the error file from all parts, and writes the result (``record``).
"""
