"""Long work, which takes longer than a request: successive jobs run it until it has ended.

Long work is a directory on the volume, a ``Record`` (``records``). Its files are written once, and
together they are its state: the request, how the work is going to end, and how it has ended.
``Records`` creates, finds, lists, ends and removes the records of a kind.

A job waits in its ``WorkLine`` until the worker has a place for it (``runner``). Its ``Attempt`` at
the work has a deadline, and acquires leases, so that no two jobs do the same concurrently.
``run_steps`` repeats a step until the work has ended, or the job's time is over; then another job
continues. A batch and a fine-tune each have such a step. Workers tell each other for which work
they have jobs in a ``job_list``.
"""
