"""Long work, which takes longer than a request: successive jobs run it until it has ended.

Long work is a directory on the volume, a ``Record`` (``records``). Its files are written once, and
together they are its state: the request, how the work is going to end, and how it has ended.
``Records`` creates, finds, lists, ends and removes the records of a kind.

A job waits in its ``WorkLine`` until the worker has a place for it (``runner``). Its ``Turn`` at
the work has a deadline, and acquires leases, so that no two jobs do the same concurrently.
``run_steps`` repeats a step until the work has ended, or the job's time is over; then another job
continues. A batch and a fine-tune each have such a step. Workers tell each other for which work
they have jobs in a ``job_list``.

If the worker dies, its lease stays, without heartbeats. Whoever comes first goes on with the work:

- **A job that has a place**, because the platform has sent the dead worker's job again, or several
  jobs share the work. It acquires the lease (``Turn.acquire_lease``) after 15 polls of a second
  without a heartbeat. 3 polls suffice once the last heartbeat is 15 seconds old.
- **A job that waits for a place**, in the same way once it has the place; until then, it polls
  nothing.
- **Any worker, in the background** (``worker.background``): every 5 seconds it looks for work that
  has had no heartbeat for 15 seconds, and of which it has no job itself
  (``JobList.find_orphans``). If no other worker has a job for the work either, it sends one, at
  most every 60 seconds. If it can't send jobs, or another worker's job only waits, it runs the work
  itself, under the lease like a job.
- **Nobody, if the work should end** (``Records.end_if_due``): each of them, and a request that
  reads the record, ends cancelled and expired work 60 seconds after the last heartbeat, and work
  that has probably killed 20 workers after 15 seconds.
"""
