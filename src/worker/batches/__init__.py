"""Batches: files of requests that successive workers answer over hours.

A batch is a directory on the volume. Each of its files is written once, or is only appended to by
its one writer. The state of a batch follows from which of these files exist, so a worker can be
killed at any line and the next one continues.

A job repeats a ``BatchStep`` (``run``). The first step validates the input and divides it into
shards, the plan (``lines``). Each of the next ones answers the lines of a shard, as many at a time
as a ``SlotWindow`` leaves to batches, and appends their results to a part (``parts``). The last
step decides how the batch ends, assembles the output file and the error file from all parts, and
writes the result (``record``).

A batch has one shard, unless its ``data_parallelism`` divides it. Several workers share it by its
leases: one plans it, each answers another shard, and one ends it once nobody has a shard. Whoever
acquires a dead worker's lease of a shard (``worker.long_work`` says when) reads the finished lines
of all its parts, and answers the others into a new part. If the earlier worker was only frozen, its
next heartbeat finds that the lease is lost, and it stops. Until then both may answer a line, in
different parts: ``read_finished_lines`` takes one of the results, if possible a success.
``BatchEnding`` has the sizes of the parts at the decision, so whoever writes the files writes the
same ones, whatever is still added to a part.
"""
