"""The one place that knows the shapes a job's input can have."""

from typing import Any

from worker.errors import InvalidInput
from worker.job import llm_engine
from worker.job.base import Job, present
from worker.job.llm_engine import LLMEngineJob
from worker.job.openai import OpenAIJob
from worker.job.raw import ListJob, RawJob

__all__ = ["Job", "ListJob", "OpenAIJob", "RawJob", "parse_input"]

ACCEPTED_INPUTS = """\
accepted inputs:
  {"prompt": "text", "sampling_params": {...}, "stream": true}
  {"messages": [{"role": "user", "content": "text"}], "sampling_params": {...}, "stream": true}
  {"prompts": ["text", "text"], "sampling_params": {...}}
  {"messages_list": [[{"role": "user", "content": "text"}], [...]], "sampling_params": {...}}
  {"format": "llm_engine", "prompt": "text", "max_new_tokens": 20, "temperature": 0.2}
  {"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}
  {"route": "/v1/models", "method": "GET", "body": null}"""

SHAPES = (OpenAIJob, ListJob, RawJob)


def parse_input(payload: Any) -> OpenAIJob | RawJob | ListJob:
    """Validate a job's ``input``; null values count as absent.

    Raises:
        InvalidInput: naming the field, or showing the accepted shapes.
    """
    given = present(payload) if isinstance(payload, dict) else {}
    if given.get("format") == llm_engine.FORMAT:
        del given["format"]
        given = LLMEngineJob.read(given).spelled_out
    shape = next((shape for shape in SHAPES if shape.marks & given.keys()), None)
    if shape is None:
        raise InvalidInput(
            f"The input is none of the shapes that this worker takes; {ACCEPTED_INPUTS}"
        )
    return shape.read(given)
