"""The classes of jobs: the forms that a job's input can have.

A job has the first class of ``JOB_TYPES`` with a marker key among the keys of its input. The class
is a model that validates the input. ``OpenAIJob`` is a request to a route, whose body is validated
later, by the code of the route. ``RawJob`` has a prompt or a conversation, ``PromptListJob`` many;
of their parameters, the module ``sampling_params`` checks those that are not vLLM's own. A
``LongJob`` creates or continues a batch or a fine-tune. ``base`` has the keys that all share.
"""

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
