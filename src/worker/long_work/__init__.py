"""Work that lasts longer than a request: jobs run it, one after the other, until it has ended.

Such work is a directory on the volume, a ``Record``: its files are written once and are its state.
A job's ``Attempt`` at it takes leases, so that no two jobs do the same at once. ``run`` repeats a
step until the work has ended, or the job's time is over. ``kinds`` has a row for each kind.
"""
