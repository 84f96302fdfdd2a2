"""The tokens in a job's record are those that vLLM counts, also where the caller sees no usage."""

import json
from typing import Any

import pytest

from worker.app import Worker
from worker.record import JobRecord

QUESTION = [{"role": "user", "content": "What does this worker do?"}]
SHORT = {"temperature": 0, "max_tokens": 7, "ignore_eos": True}
CHAT = {"messages": QUESTION, **SHORT}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


async def answer(worker: Worker, **payload: Any) -> tuple[list[Any], JobRecord]:
    record = JobRecord("job-1")
    job = {"id": "job-1", "input": payload}
    return [chunk async for chunk in worker.handle(job, record)], record


async def tokens(worker: Worker, **payload: Any) -> tuple[int | None, int | None]:
    """Return the tokens in a job's record, which must have an answer."""
    _, record = await answer(worker, **payload)
    assert record.status == 200
    return record.usage.prompt_tokens, record.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_raw_jobs_and_lists(worker: Worker, stream: bool, n: int) -> None:
    params = {"max_tokens": 7, "ignore_eos": True, "n": n}
    raw: dict[str, Any] = {"sampling_params": params, "stream": stream}
    (whole,), _ = await answer(worker, prompt="Once", sampling_params=params)
    prompt_tokens = whole["usage"]["input"]
    assert await tokens(worker, prompt="Once", **raw) == (prompt_tokens, 7 * n)
    assert await tokens(worker, prompts=["Once"] * 3, **raw) == (3 * prompt_tokens, 3 * 7 * n)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "n": 2, "temperature": 1}),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {**CHAT, "tools": [WEATHER], "tool_choice": "none"}),
        ("/v1/completions", {"prompt": "Once", **SHORT}),
        (
            "/v1/completions",
            {"prompt": ["Once", "Twice or more"], **SHORT, "n": 2, "temperature": 1},
        ),
        ("/v1/responses", {"input": "Hi", "temperature": 0, "max_output_tokens": 7}),
        ("/v1/messages", {"messages": QUESTION, "max_tokens": 7, "temperature": 0}),
    ],
)
async def test_every_route_that_generates(worker: Worker, route: str, body: dict[str, Any]) -> None:
    (whole,), record = await answer(worker, openai_route=route, openai_input=body)
    said = whole["usage"]
    prompt_tokens = said.get("prompt_tokens", said.get("input_tokens"))
    output_tokens = said.get("completion_tokens", said.get("output_tokens"))
    assert min(prompt_tokens, output_tokens) > 0
    assert record.usage.prompt_tokens == prompt_tokens
    assert record.usage.output_tokens == output_tokens
    streamed = {"openai_route": route, "openai_input": {**body, "stream": True}}
    assert await tokens(worker, **streamed) == (prompt_tokens, output_tokens)


@pytest.mark.parametrize("continuous", [False, True])
async def test_the_usage_that_a_caller_asks_for_is_the_records(
    worker: Worker, continuous: bool
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    body = {**CHAT, "stream": True, "stream_options": options}
    chunks, record = await answer(worker, openai_route="/v1/chat/completions", openai_input=body)
    events = "".join(chunks).removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    usages = [json.loads(event.removeprefix("data: ")).get("usage") for event in events]
    assert usages[-1]["prompt_tokens"] == record.usage.prompt_tokens
    assert usages[-1]["completion_tokens"] == record.usage.output_tokens == 7
    assert all(usages) is continuous


async def test_a_stream_has_no_usage_that_its_caller_did_not_ask_for(worker: Worker) -> None:
    body = {**CHAT, "stream": True}
    chunks, record = await answer(worker, openai_route="/v1/chat/completions", openai_input=body)
    assert "usage" not in "".join(chunks)
    assert record.usage.output_tokens == 7


async def test_the_times_are_in_order(worker: Worker) -> None:
    _, record = await answer(worker, prompt="Once", stream=True)
    assert record.begun_at is not None
    assert record.first_at is not None
    assert record.taken_at <= record.begun_at <= record.first_at
