"""LLM Engine's completions, as jobs (``"format": "llm_engine"``) and as routes."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from worker.chunking import ONE_BY_ONE
from worker.engine import Delta
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.job.base import Job
from worker.limits.parameters import GUIDED_KEYS
from worker.routes import events, generation
from worker.routes.answer import Answer
from worker.routes.route import RouteRequest
from worker.validation import SAMPLING_PARAMS, StrictModel, drop_nulls

FORMAT = "llm_engine"

# vLLM's names of sampling parameters by LLM Engine's names.
RENAMED_KEYS = {"max_new_tokens": "max_tokens", "stop_sequences": "stop"}
# Keys that a raw job has at the top level, outside sampling_params.
RAW_KEYS = {"prompt", "prompts", "model", "stream", "use_tqdm", *Job.model_fields}
# Arguments of LLM Engine's client that the server ignores.
CLIENT_ONLY_KEYS = frozenset({"timeout", "request_headers"})

# Validation stops at the first invalid item of a list.
Texts = Annotated[list[str], Field(fail_fast=True)]
Penalty = Annotated[float, Field(ge=0, le=2)]
# Maximum bytes of a piece. An event is one line, and the client reads lines of up to 524,288 bytes.
MAX_EVENT_BYTES = 250_000
# Key of the query string in which the client sends the model's name.
MODEL_QUERY_KEY = "model_endpoint_name"


class CompletionParameters(StrictModel):
    """LLM Engine's sampling parameters, which completions and batches share."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.2
    stop_sequences: Texts | None = None
    return_token_log_probs: bool = False
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    skip_special_tokens: bool | None = None


class LLMEngineJob(Job, CompletionParameters):
    """The input of a job for one completion (``prompt``) or several completions (``prompts``)."""

    prompt: str | None = None
    prompts: list[Any] | None = None
    model: str | None = None
    include_stop_str_in_output: bool | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    stream: bool = False
    use_tqdm: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_client_only_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key not in CLIENT_ONLY_KEYS}

    @model_validator(mode="after")
    def _require_prompt(self) -> Self:
        if (self.prompt is None) == (self.prompts is None):
            raise ValueError("either a prompt or prompts")
        return self

    @model_validator(mode="after")
    def _check_single_constraint(self) -> Self:
        if len(guides := sorted(self.model_fields_set & GUIDED_KEYS)) > 1:
            message = f"an answer can be constrained by one of {', '.join(guides)}, not more"
            raise InvalidInput(message, param=guides[0])
        return self


def convert_to_raw(values: dict[str, Any]) -> dict[str, Any]:
    raw: dict[str, Any] = {"format": FORMAT}
    sampling: dict[str, Any] = {}
    for name, value in LLMEngineJob.from_input(values):
        if value is not None:
            (raw if name in RAW_KEYS else sampling)[RENAMED_KEYS.get(name, name)] = value
    return {**raw, SAMPLING_PARAMS: sampling}


def complete_prompt(request: RouteRequest) -> Answer[Delta]:
    """Complete a prompt."""
    return _make_answer(request, stream=False)


def stream_completion(request: RouteRequest) -> Answer[Delta]:
    """Complete a prompt as a stream of events, one for each token."""
    answer = _make_answer(request, stream=True)

    def render(deltas: list[Delta]) -> Any:
        return _render_events(request, [answer.render([delta]) for delta in deltas])

    def render_receipt(receipt: dict[str, Any] | None) -> Any:
        return _render_events(request, [{"receipt": receipt}] if receipt else [])

    def render_error(body: dict[str, Any]) -> Any:
        error = body["error"]
        content = {"error": error["message"], "timestamp": datetime.now(UTC).isoformat()}
        data = {
            "request_id": error["request_id"],
            "error": {"status_code": error["code"], "content": content},
        }
        return _render_events(request, [data])

    # No chunk policy is needed: even if a yield has several tokens, each becomes its own event.
    return replace(
        answer,
        render=render,
        render_error=render_error,
        render_receipt=render_receipt,
        policy=None,
    )


def _make_answer(request: RouteRequest, *, stream: bool) -> Answer[Delta]:
    overrides = {"model": request.job.query_params.get(MODEL_QUERY_KEY), "stream": stream}
    job = RawJob.from_input(convert_to_raw(drop_nulls({**request.body, **overrides})))
    engine = request.engines.main_engine
    return generation.make_answer(
        job, request.request_id, engine, request.settings, LLMEngineFormatter, MAX_EVENT_BYTES
    )


def _render_events(request: RouteRequest, data: list[dict[str, Any]]) -> Any:
    """Return events as text, or as a list of their data if ``raw_openai_output`` is off."""
    if not request.settings.raw_openai_output:
        return data
    return "".join(map(events.format_event, data))


class LLMEngineFormatter:
    """Formats an answer for LLM Engine's client: a text, and the number of tokens so far."""

    def __init__(self, job: RawJob, request_id: str) -> None:
        self._request_id = request_id
        self._stream = job.stream
        self._log_probs = job.sampling_params.return_token_log_probs
        self._output_tokens = 0
        self._finished = False
        # An event has a field for the log probability of one token, so each token is sent alone.
        self.chunk_policy = ONE_BY_ONE if self._log_probs else None

    def format_chunk(self, deltas: list[Delta]) -> dict[str, Any]:
        self._output_tokens += sum(delta.tokens for delta in deltas)
        self._finished = self._finished or any(delta.finish_reason for delta in deltas)
        output: dict[str, Any] = {"text": "".join(delta.text for delta in deltas)}
        if self._stream:
            output["finished"] = self._finished
        if deltas and self._finished:
            output["num_prompt_tokens"] = deltas[-1].prompt_tokens
        output["num_completion_tokens"] = self._output_tokens
        if self._log_probs:
            tokens = [
                {"token": logprobs["token"], "log_prob": logprobs["logprob"]}
                for delta in deltas
                for logprobs in delta.logprobs or []
            ]
            output |= {"token": next(iter(tokens), None)} if self._stream else {"tokens": tokens}
        return {"request_id": self._request_id, "output": output}

    def format_item(self, deltas: list[Delta]) -> dict[str, Any]:
        output: dict[str, Any] = self.format_chunk(deltas)["output"]
        return output
