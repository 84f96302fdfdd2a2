"""How many jobs a worker takes, and how many may be inside it at once; pure."""

from worker.settings import Jobs

MOST_WAITING = 32


# Of a worker that only trains. One that waited in it would use up its own time, and an idle worker
# could not take it; in the platform's queue it calls for a further worker.
TRAININGS_AT_ONCE = 1


def jobs_at_once(wanted: Jobs, slots: int) -> int:
    """Return how many jobs a worker with an engine takes from the platform's queue at once.

    Args:
        wanted: MAX_CONCURRENCY.
        slots: how many requests the engine computes at once.
    """
    return slots + _queue(slots) if wanted == "auto" else wanted


def most_inside(jobs: int, slots: int) -> int:
    """Return how many jobs may be inside the worker, whichever way they came.

    Args:
        jobs: how many it takes from the platform's queue at once.
        slots: how many requests the engine computes at once.
    """
    return max(jobs, slots + _queue(slots))


def _queue(slots: int) -> int:
    """Return how many jobs may wait for a slot.

    A waiting job fills a slot in the moment when it becomes free; without one the slot would be
    empty for as long as the next job needs to get here. Equal jobs end together, so there is one
    for every slot of a small engine. Of many slots few become free within that time, and a job that
    waits here for longer is one that an idle worker lacks.
    """
    return min(slots, MOST_WAITING)
