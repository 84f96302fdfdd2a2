"""Long work, which takes longer than a request: successive jobs run it until it has ended.

Long work is a directory on the volume, a ``Record``. Its files are written once, and together they
are its state. A job's ``Attempt`` at the work acquires leases, so that no two jobs do the same
concurrently. ``runner.run_steps`` repeats a step until the work has ended, or the job's time is
over. ``kinds`` lists the kinds of long work.
"""
