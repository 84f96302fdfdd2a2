"""Limits on the jobs that a worker takes from the queue, and on all of its jobs; pure functions."""

from worker.settings import Concurrency

MAX_WAITING_JOBS = 32

# Maximum number of jobs in a worker that only trains adapters. A second training would use up its
# own time limit while it waits in this worker, and an idle worker could not take it. If it stays in
# the platform's queue, the platform starts another worker for it.
MAX_CONCURRENT_TRAININGS = 1


def max_jobs_from_queue(max_concurrency: Concurrency, slots: int) -> int:
    """Return how many jobs from the platform's queue a worker with an engine has at a time.

    ``slots`` is the number of requests that the engine computes concurrently.
    """
    return slots + _max_waiting_jobs(slots) if max_concurrency == "auto" else max_concurrency


def max_jobs_in_worker(queue_jobs: int, slots: int) -> int:
    """Return the maximum number of jobs in the worker, from the queue and over HTTP together."""
    return max(queue_jobs, slots + _max_waiting_jobs(slots))


def _max_waiting_jobs(slots: int) -> int:
    """Return how many jobs may wait for a slot.

    A waiting job fills a slot as soon as the slot is free. Without a waiting job the slot stays
    empty until the next job arrives. Jobs of equal length finish together, so a small engine has
    one waiting job for each slot. In a large engine few slots become free at a time, and a job
    that waits long for a slot could have run on an idle worker.
    """
    return min(slots, MAX_WAITING_JOBS)
