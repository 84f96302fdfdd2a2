"""Completions of LLM Engine's: the form of ``"format": "llm_engine"``, as a route."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from worker.chunking import ONE_BY_ONE
from worker.engine import Delta
from worker.job import RawJob
from worker.job.llm_engine import LLMEngineJob
from worker.limits.structured import Bounds
from worker.routes import generation
from worker.routes.answer import Answer
from worker.routes.route import Asked
from worker.validation import without_nulls

# Bytes of a piece: the client reads no line of more than 524,288, and an event is one.
ROOM = 250_000
# What the client calls the model, in the query string.
MODEL = "model_endpoint_name"


def whole(asked: Asked) -> Answer[Delta]:
    """Complete a prompt (LLM Engine's)."""
    return _generated(asked, stream=False)


def streamed(asked: Asked) -> Answer[Delta]:
    """Complete a prompt by events, each with a token (LLM Engine's)."""
    made = _generated(asked, stream=True)

    def render(deltas: list[Delta]) -> Any:
        return _events(asked, [made.render([delta]) for delta in deltas])

    def render_error(body: dict[str, Any]) -> Any:
        return _events(asked, [_error(body["error"])])

    # Each token is an event of its own, however many a yield holds.
    return replace(made, render=render, render_error=render_error, policy=None)


def _generated(asked: Asked, *, stream: bool) -> Answer[Delta]:
    """Return the answer to the raw job that a request stands for.

    Raises:
        InvalidInput: naming the field.
    """
    named = {"model": asked.job.query.get(MODEL), "stream": stream}
    values = LLMEngineJob.read(without_nulls({**asked.body, **named})).as_raw
    bounds = Bounds.of(asked.settings)
    return generation.answer(
        RawJob.read(values), asked.request_id, asked.engines.main, bounds, LLMEngineForm, ROOM
    )


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
