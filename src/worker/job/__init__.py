"""The shapes that a job's input can have."""

from worker.job.base import Job, LongJob
from worker.job.batch import BatchJob
from worker.job.fine_tune import FineTuneJob
from worker.job.openai import OpenAIJob
from worker.job.raw import PromptListJob, RawJob

__all__ = [
    "JOB_TYPES",
    "AnyJob",
    "BatchJob",
    "FineTuneJob",
    "Job",
    "LongJob",
    "OpenAIJob",
    "PromptListJob",
    "RawJob",
]

AnyJob = OpenAIJob | RawJob | PromptListJob | BatchJob | FineTuneJob

# A job has the first of these types with a marker key among the input's keys.
JOB_TYPES = (OpenAIJob, BatchJob, FineTuneJob, PromptListJob, RawJob)
