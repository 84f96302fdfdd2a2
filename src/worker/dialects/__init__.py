"""Parses jobs' inputs, and answers each job in its dialect: raw, OpenAI's or LLM Engine's.

``parse_input`` finds the class of a job's input (``worker.job``) by its keys, and validates it.
``make_answer`` then finds the code that answers it:

- A request to a route goes to ``table``, which has all ``ROUTES``. Requests for vLLM's server are
  forwarded to it (``openai.forward``); ``openai`` and ``llm_engine`` answer the others. The first
  line of the docstring of a route's function is its summary in /openapi.json.
- A prompt or a list of prompts goes to ``worker.routes.generation``, with the formatter of its
  format: the worker's own, or LLM Engine's.
- Long work goes to ``long_jobs``. Each line of a batch is a request to a route, and goes to
  ``table``, too.

The result is an ``Answer``, which is not started. ``worker.limits`` says who refuses a request, and
in which order.
"""

from collections.abc import Callable
from typing import Any

from worker.dialects import long_jobs, table
from worker.dialects.llm_engine import batch_output, completions
from worker.dialects.table import RequestDescription
from worker.errors import InvalidInput, UnknownRoute, field_error
from worker.job import (
    JOB_TYPES,
    AnyJob,
    BatchJob,
    FineTuneJob,
    LongJob,
    OpenAIJob,
    PromptListJob,
    RawJob,
)
from worker.limits.inputs import DEFAULT_MEGABYTES, check_size
from worker.routes import generation
from worker.routes.answer import Answer
from worker.routes.generation import MakeFormatter
from worker.routes.models import check_model_ability
from worker.routes.resources import Resources
from worker.validation import (
    MAX_MISTAKES,
    drop_nulls,
    find_similar_names,
    unknown_key_message,
)

# Factories of the extra output files that batches can request, by ``StoredBatch.output``.
OUTPUTS = batch_output.OUTPUTS
# Formatters of raw answers, by the value of the input's key ``format``.
FORMATTERS: dict[str, MakeFormatter] = {
    "raw": generation.RawFormatter,
    completions.FORMAT: completions.LLMEngineFormatter,
}
# Functions that convert inputs to inputs of raw jobs, by the value of the key ``format``.
CONVERTERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    completions.FORMAT: completions.convert_to_raw
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


def parse_input(payload: Any, max_megabytes: float = DEFAULT_MEGABYTES) -> AnyJob:
    """Validate a job's ``input`` of at most ``max_megabytes``; null values count as absent.

    Raises:
        InputTooLarge: The input has too many bytes.
        InvalidInput: The message names the invalid field or lists the accepted inputs.
    """
    check_size(payload, max_megabytes)
    values = drop_nulls(payload) if isinstance(payload, dict) else {}
    if convert := CONVERTERS.get(str(values.get("format"))):
        del values["format"]
        values = convert(values)
    job_type = next((cls for cls in JOB_TYPES if cls.marker_keys & values.keys()), None)
    if job_type is None:
        # The error suggests a key that is similar to one of the input's, or lists all forms.
        markers = [marker for cls in JOB_TYPES for marker in cls.marker_keys]
        known = {name for cls in JOB_TYPES for name in (*cls.model_fields, *cls.aliases.values())}
        for key in list(values)[:MAX_MISTAKES]:
            if key not in known and find_similar_names(key, markers):
                raise InvalidInput(unknown_key_message(key, markers), param=key)
        raise InvalidInput(
            f"The input has none of the forms that this worker accepts; {ACCEPTED_INPUTS}"
        )
    if job_type in {RawJob, PromptListJob} and values.get("format", "raw") not in list(FORMATTERS):
        raise field_error("format", f"Input should be {' or '.join(map(repr, FORMATTERS))}")
    return job_type.from_input(values)


def make_answer(
    job: AnyJob, request_id: str, resources: Resources, time_limit: float
) -> Answer[Any]:
    """Return the answer to a job, not yet started. Long work may take ``time_limit`` seconds."""
    engines, settings = resources.engines, resources.settings
    match job:
        case OpenAIJob():
            return table.make_answer(job, request_id, resources)
        case RawJob():
            check_model_ability(job.model, [engines.main_engine], engines, "prompts and messages")
            return generation.make_answer(
                job, request_id, engines.main_engine, settings, FORMATTERS[job.format]
            )
        case PromptListJob():
            check_model_ability(
                job.shared.model, [engines.main_engine], engines, "prompts and messages"
            )
            return generation.make_list_answer(
                job, request_id, engines.main_engine, settings, FORMATTERS[job.shared.format]
            )
        case LongJob() if job.kind in settings.disabled:
            message = f"There are no jobs with {job.kind!r}: DISABLED_ROUTES disables them."
            raise UnknownRoute(message, param=job.kind)
        case BatchJob():
            return long_jobs.make_batch_answer(job, request_id, resources, time_limit)
        case FineTuneJob():
            return long_jobs.make_fine_tune_answer(job, request_id, resources, time_limit)


def describe_request(job: AnyJob) -> RequestDescription:
    match job:
        case OpenAIJob():
            return table.describe_request(job)
        case RawJob():
            return RequestDescription("raw", job.stream)
        case PromptListJob():
            return RequestDescription("list", job.stream)
        case LongJob():
            return RequestDescription(job.kind, job.stream)
