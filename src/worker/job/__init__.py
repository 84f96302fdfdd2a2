"""The shapes that a job's input can have."""

from worker.job.base import Job, LongJob
from worker.job.batch import BatchJob
from worker.job.fine_tune import FineTuneJob
from worker.job.openai import OpenAIJob
from worker.job.raw import ListJob, RawJob
from worker.limits.budget import Budget

__all__ = [
    "SHAPES",
    "AnyJob",
    "BatchJob",
    "Budget",
    "FineTuneJob",
    "Job",
    "ListJob",
    "LongJob",
    "OpenAIJob",
    "RawJob",
]

AnyJob = OpenAIJob | RawJob | ListJob | LongJob

# An input has the first shape of which it has a mark.
SHAPES = (OpenAIJob, BatchJob, FineTuneJob, ListJob, RawJob)
