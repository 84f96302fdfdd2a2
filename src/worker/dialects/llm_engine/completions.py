"""Completions of LLM Engine's, as jobs (``"format": "llm_engine"``) and as routes."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from worker.chunking import ONE_BY_ONE
from worker.engine import Delta
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.job.base import Job
from worker.limits.spelling import GUIDED
from worker.routes import generation
from worker.routes.answer import Answer
from worker.routes.route import Asked
from worker.validation import SAMPLING, Strict, without_nulls

FORMAT = "llm_engine"

# LLM Engine's names -> those in sampling_params.
RENAMED = {"max_new_tokens": "max_tokens", "stop_sequences": "stop"}
# Keys that are the same in a raw job, beside its sampling_params.
NOT_SAMPLING = {"prompt", "prompts", "model", "stream", "use_tqdm", *Job.model_fields}
# Arguments of LLM Engine's client that are not for the server.
CLIENT_ONLY = frozenset({"timeout", "request_headers"})

# The first mistake in a list is enough.
Texts = Annotated[list[str], Field(fail_fast=True)]
Penalty = Annotated[float, Field(ge=0, le=2)]
# Bytes of a piece: the client reads no line of more than 524,288, and an event is one.
ROOM = 250_000
# What the client calls the model, in the query string.
MODEL = "model_endpoint_name"


class Parameters(Strict):
    """How an answer is sampled: what completions and batches share."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.2
    stop_sequences: Texts | None = None
    return_token_log_probs: bool = False
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    skip_special_tokens: bool | None = None


class LLMEngineJob(Job, Parameters):
    """A completion (``prompt``), or a batch of them (``prompts``)."""

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
    def _drop_client_only(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key not in CLIENT_ONLY}

    @model_validator(mode="after")
    def _needs_prompt(self) -> Self:
        if (self.prompt is None) == (self.prompts is None):
            raise ValueError("either a prompt or prompts")
        return self

    @model_validator(mode="after")
    def _held_to_one(self) -> Self:
        if len(given := sorted(self.model_fields_set & GUIDED)) > 1:
            message = f"an answer is held to one of {', '.join(given)}, not more"
            raise InvalidInput(message, param=given[0])
        return self


def as_raw(values: dict[str, Any]) -> dict[str, Any]:
    """Return an input as a raw one.

    Raises:
        InvalidInput: naming the fields that are wrong.
    """
    raw: dict[str, Any] = {"format": FORMAT}
    sampling: dict[str, Any] = {}
    for name, value in LLMEngineJob.read(values):
        if value is not None:
            (raw if name in NOT_SAMPLING else sampling)[RENAMED.get(name, name)] = value
    return {**raw, SAMPLING: sampling}


def complete(asked: Asked) -> Answer[Delta]:
    """Complete a prompt (LLM Engine's)."""
    return _generate(asked, stream=False)


def stream(asked: Asked) -> Answer[Delta]:
    """Complete a prompt by events, each with a token (LLM Engine's)."""
    made = _generate(asked, stream=True)

    def render(deltas: list[Delta]) -> Any:
        return _events(asked, [made.render([delta]) for delta in deltas])

    def render_error(body: dict[str, Any]) -> Any:
        return _events(asked, [_error(body["error"])])

    # Each token is an event of its own, however many a yield holds.
    return replace(made, render=render, render_error=render_error, policy=None)


def _generate(asked: Asked, *, stream: bool) -> Answer[Delta]:
    """Return the answer to the raw job that a request stands for.

    Raises:
        InvalidInput: naming the field.
    """
    named = {"model": asked.job.query.get(MODEL), "stream": stream}
    job = RawJob.read(as_raw(without_nulls({**asked.body, **named})))
    engine = asked.engines.main
    return generation.answer(job, asked.request_id, engine, asked.settings, LLMEngineForm, ROOM)


def _events(asked: Asked, data: list[dict[str, Any]]) -> Any:
    """Return events as text, or, where the operator wants them decoded, their data."""
    if not asked.settings.raw_openai_output:
        return data
    return "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in data)


def _error(error: dict[str, Any]) -> dict[str, Any]:
    content = {"error": error["message"], "timestamp": datetime.now(UTC).isoformat()}
    return {
        "request_id": error["request_id"],
        "error": {"status_code": error["code"], "content": content},
    }


class LLMEngineForm:
    """LLM Engine's form: one text, and how many tokens there are so far."""

    def __init__(self, job: RawJob, request_id: str) -> None:
        self._request_id = request_id
        self._stream = job.stream
        self._log_probs = job.sampling_params.return_token_log_probs
        self._output_tokens = 0
        # An event has room for one token's log probability.
        self.policy = ONE_BY_ONE if self._log_probs else None

    def grow(self, deltas: list[Delta]) -> dict[str, Any]:
        self._output_tokens += sum(delta.tokens for delta in deltas)
        finished = any(delta.finish_reason for delta in deltas)
        output: dict[str, Any] = {"text": "".join(delta.text for delta in deltas)}
        if self._stream:
            output["finished"] = finished
        if finished:
            output["num_prompt_tokens"] = deltas[-1].prompt_tokens
        output["num_completion_tokens"] = self._output_tokens
        if self._log_probs:
            tokens = [
                {"token": position["token"], "log_prob": position["logprob"]}
                for delta in deltas
                for position in delta.logprobs or []
            ]
            output |= {"token": next(iter(tokens), None)} if self._stream else {"tokens": tokens}
        return {"request_id": self._request_id, "output": output}

    def item(self, deltas: list[Delta]) -> dict[str, Any]:
        output: dict[str, Any] = self.grow(deltas)["output"]
        return output
