"""The forms in which callers ask and are answered: a module for every family of jobs."""

from collections.abc import Callable
from typing import Any

from worker.dialects import table
from worker.dialects.llm_engine import batch_output, completions
from worker.dialects.raw import RawForm
from worker.errors import InvalidInput
from worker.job import (
    SHAPES,
    AnyJob,
    Budget,
    ListJob,
    LongJob,
    OpenAIJob,
    RawJob,
)
from worker.long_work.kinds import KINDS
from worker.routes import generation, lists
from worker.routes.abilities import refuse_unable
from worker.routes.answer import Answer
from worker.routes.generation import MakeForm
from worker.routes.resources import Resources
from worker.validation import without_nulls

# What batches can write beside their files of results.
OUTPUTS = batch_output.OUTPUTS
# The forms of raw answers, by the key ``format`` of the input.
FORMS: dict[str, MakeForm] = {"raw": RawForm, completions.FORMAT: completions.LLMEngineForm}
# How the input becomes a raw one, by the same key.
READERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    completions.FORMAT: completions.as_raw
}

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
    if read := READERS.get(str(values.get("format"))):
        del values["format"]
        values = read(values)
    shape = next((shape for shape in SHAPES if shape.marks & values.keys()), None)
    if shape is None:
        raise InvalidInput(
            f"The input is none of the shapes that this worker takes; {ACCEPTED_INPUTS}"
        )
    if shape in {RawJob, ListJob} and values.get("format", "raw") not in list(FORMS):
        message = f"format: Input should be {' or '.join(map(repr, FORMS))}"
        raise InvalidInput(message, param="format")
    return shape.read(values)


def answer(job: AnyJob, request_id: str, resources: Resources, seconds: float) -> Answer[Any]:
    """Return the answer to a job, which has not started.

    Args:
        job: parsed.
        request_id: the job's id.
        resources: what it is answered with.
        seconds: that it may take.

    Raises:
        WorkerError: no route serves the job.
    """
    engines, settings = resources.engines, resources.settings
    match job:
        case OpenAIJob():
            return table.answer(job, request_id, resources)
        case RawJob():
            refuse_unable(job.model, [engines.main], engines, "prompts and messages")
            return generation.answer(job, request_id, engines.main, settings, FORMS[job.format])
        case ListJob():
            refuse_unable(job.shared.model, [engines.main], engines, "prompts and messages")
            return lists.answer(job, request_id, engines.main, settings, FORMS[job.shared.format])
        case LongJob():
            reply: Answer[Any] = KINDS[job.kind].load_answer()(job, request_id, resources, seconds)
            return reply


def described(job: AnyJob) -> tuple[str, bool]:
    """Return a job's route for the log, in none of the caller's words, and whether it streams."""
    match job:
        case OpenAIJob():
            route = table.find(job)
            if route is None:
                return "unknown", False
            return route.template, job.stream or (route.generate is not None and route.streams)
        case RawJob():
            return "raw", job.stream
        case ListJob():
            return "list", job.stream
        case LongJob():
            return job.kind, job.stream
