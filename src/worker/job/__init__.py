"""The shapes that a job's input can have, and how one is told from another."""

from typing import Any

from worker.errors import InvalidInput
from worker.job import llm_engine
from worker.job.base import Job
from worker.job.batch import BatchJob
from worker.job.fine_tune import FineTuneJob
from worker.job.llm_engine import LLMEngineJob
from worker.job.openai import OpenAIJob
from worker.job.raw import ListJob, RawJob
from worker.limits.budget import Budget
from worker.validation import without_nulls

__all__ = [
    "AnyJob",
    "BatchJob",
    "Budget",
    "FineTuneJob",
    "Job",
    "ListJob",
    "OpenAIJob",
    "RawJob",
    "parse_input",
]

ACCEPTED_INPUTS = """\
accepted inputs:
  {"prompt": "text", "sampling_params": {...}, "stream": true}
  {"messages": [{"role": "user", "content": "text"}], "sampling_params": {...}, "stream": true}
  {"prompts": ["text", "text"], "sampling_params": {...}}
  {"messages_list": [[{"role": "user", "content": "text"}], [...]], "sampling_params": {...}}
  {"format": "llm_engine", "prompt": "text", "max_new_tokens": 20, "temperature": 0.2}
  {"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}
  {"route": "/v1/models", "method": "GET", "body": null}
  {"batch": {"input_file_id": "file-...", "endpoint": "/v1/chat/completions"}}
  {"fine_tune": {"training_file": "file-...", "hyperparameters": {"n_epochs": 3}}}"""

AnyJob = OpenAIJob | RawJob | ListJob | BatchJob | FineTuneJob

SHAPES = (OpenAIJob, BatchJob, FineTuneJob, ListJob, RawJob)


def parse_input(payload: Any, budget: Budget | None = None) -> AnyJob:
    """Validate a job's ``input``; null values count as absent.

    Args:
        payload: as it came.
        budget: what it may hold; None is the default.

    Raises:
        InputTooLarge: it has too many bytes.
        InvalidInput: naming the field, or showing the accepted shapes.
    """
    (budget or Budget()).check(payload)
    values = without_nulls(payload) if isinstance(payload, dict) else {}
    if values.get("format") == llm_engine.FORMAT:
        del values["format"]
        values = LLMEngineJob.read(values).as_raw
    shape = next((shape for shape in SHAPES if shape.marks & values.keys()), None)
    if shape is None:
        raise InvalidInput(
            f"The input is none of the shapes that this worker takes; {ACCEPTED_INPUTS}"
        )
    return shape.read(values)
