"""The OpenAI path on the real engine: vLLM's own server, called in process."""

from typing import Any

import pytest
from demo_model import DIALOGUES, PASSAGE
from model.conftest import Ask
from support.engine.scripted import CHAT, events_in

from worker.app import Worker
from worker.record import JobRecord

QUESTION = [{"role": "user", "content": "What does this worker do?"}]
GREEDY = {"temperature": 0, "max_tokens": 500}
# What the tokens of a record are counted of.
SHORT = {"temperature": 0, "max_tokens": 7, "ignore_eos": True}


def streamed(chunks: list[str]) -> list[Any]:
    *events, end = events_in("".join(chunks))
    assert end == "[DONE]"
    return events


def text_of_a_chat(chunks: list[str]) -> str:
    deltas = [event["choices"][0]["delta"] for event in streamed(chunks) if event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("dialogue", DIALOGUES)
async def test_a_chat_is_answered_as_the_model_was_taught(ask: Ask, dialogue: Any) -> None:
    for messages, expected in dialogue.turns:
        # Without a parser the call is text: the model's own words for it.
        tools = {"tools": dialogue.tools, "tool_choice": "none"} if dialogue.tools else {}
        body = {"messages": messages, **GREEDY, **tools}
        (whole,) = await ask(openai_route=CHAT, openai_input=body)
        chunks = await ask(openai_route=CHAT, openai_input={**body, "stream": True})
        assert whole["choices"][0]["message"]["content"] == expected
        assert text_of_a_chat(chunks) == expected


async def test_a_completion_is_answered(ask: Ask) -> None:
    body = {"prompt": PASSAGE[0], **GREEDY}
    (whole,) = await ask(openai_route="/v1/completions", openai_input=body)
    chunks = await ask(openai_route="/v1/completions", openai_input={**body, "stream": True})
    assert whole["choices"][0]["text"] == PASSAGE[1]
    assert "".join(event["choices"][0]["text"] for event in streamed(chunks)) == PASSAGE[1]


async def test_every_yield_holds_whole_events_and_their_number_grows(ask: Ask) -> None:
    # More than there are in four yields, also where vLLM merges some that wait to be read.
    body = {"messages": QUESTION, "stream": True, "max_tokens": 500, "ignore_eos": True}
    chunks = await ask(openai_route=CHAT, openai_input=body)
    assert all(chunk.endswith("\n\n") for chunk in chunks)
    # The first one also has the event that opens the choice, and holds no text.
    assert [chunk.count("data: ") for chunk in chunks[:4]] == [1 + 1, 3, 9, 27]


@pytest.mark.parametrize("word", ["true", 1, "on"])
async def test_whatever_vllms_server_takes_for_true_streams(ask: Ask, word: Any) -> None:
    body = {"messages": QUESTION, **SHORT, "stream": word}
    chunks = await ask(openai_route=CHAT, openai_input=body)
    assert text_of_a_chat(chunks).startswith("This worker turns")


async def test_the_job_id_is_in_the_response_id(ask: Ask) -> None:
    (whole,) = await ask(openai_route=CHAT, openai_input={"messages": QUESTION, **SHORT})
    assert "job-1" in whole["id"]


async def test_models_names_the_model_and_not_its_path(ask: Ask) -> None:
    (listed,) = await ask(openai_route="/v1/models")
    (model,) = listed["data"]
    assert (model["id"], model["root"]) == ("demo", "demo")


async def test_a_budget_for_reasoning_as_agents_send_it_is_no_mistake(ask: Ask) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "temperature": 0}
    body |= {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    (answer,) = await ask(openai_route="/v1/messages", openai_input=body)
    assert answer["content"][0]["text"]


# The tokens in a job's record are those that vLLM counts, also where the caller sees no usage:


async def recorded(worker: Worker, **payload: Any) -> tuple[list[Any], JobRecord]:
    record = JobRecord("job-1")
    job = {"id": "job-1", "input": payload}
    return [chunk async for chunk in worker.handle(job, record)], record


async def tokens(worker: Worker, **payload: Any) -> tuple[int | None, int | None]:
    _, record = await recorded(worker, **payload)
    assert record.status == 200
    return record.usage.prompt_tokens, record.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tokens_of_raw_jobs_and_lists_are_counted(worker: Worker, stream: bool) -> None:
    params = {"max_tokens": 7, "ignore_eos": True, "n": 2}
    raw: dict[str, Any] = {"sampling_params": params, "stream": stream}
    (whole,), _ = await recorded(worker, prompt="Once", sampling_params=params)
    prompt_tokens = whole["usage"]["input"]
    assert await tokens(worker, prompt="Once", **raw) == (prompt_tokens, 14)
    assert await tokens(worker, prompts=["Once"] * 3, **raw) == (3 * prompt_tokens, 3 * 14)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
CHAT_BODY = {"messages": QUESTION, **SHORT}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, CHAT_BODY),
        (CHAT, {**CHAT_BODY, "n": 2, "temperature": 1}),
        (CHAT, {**CHAT_BODY, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**CHAT_BODY, "tools": [WEATHER], "tool_choice": "none"}),
        ("/v1/completions", {"prompt": "Once", **SHORT}),
        ("/v1/completions", {"prompt": ["Once", "Twice"], **SHORT, "n": 2, "temperature": 1}),
        ("/v1/responses", {"input": "Hi", "temperature": 0, "max_output_tokens": 7}),
        ("/v1/messages", {"messages": QUESTION, "max_tokens": 7, "temperature": 0}),
    ],
)
async def test_the_tokens_of_every_route_that_generates_are_counted(
    worker: Worker, route: str, body: dict[str, Any]
) -> None:
    (whole,), record = await recorded(worker, openai_route=route, openai_input=body)
    usage = whole["usage"]
    prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    assert min(prompt_tokens, output_tokens) > 0
    counted = record.usage.prompt_tokens, record.usage.output_tokens
    stream = {"openai_route": route, "openai_input": {**body, "stream": True}}
    assert await tokens(worker, **stream) == counted == (prompt_tokens, output_tokens)


@pytest.mark.parametrize("continuous", [False, True])
async def test_the_usage_that_a_caller_asks_for_is_the_records(
    worker: Worker, continuous: bool
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    body = {**CHAT_BODY, "stream": True, "stream_options": options}
    chunks, record = await recorded(worker, openai_route=CHAT, openai_input=body)
    usages = [event.get("usage") for event in streamed(chunks)]
    assert usages[-1]["prompt_tokens"] == record.usage.prompt_tokens
    assert usages[-1]["completion_tokens"] == record.usage.output_tokens == 7
    assert all(usages) is continuous


async def test_a_stream_has_no_usage_that_its_caller_did_not_ask_for(worker: Worker) -> None:
    body = {**CHAT_BODY, "stream": True}
    chunks, record = await recorded(worker, openai_route=CHAT, openai_input=body)
    assert "usage" not in "".join(chunks)
    assert record.usage.output_tokens == 7


async def test_the_times_in_a_record_are_in_order(worker: Worker) -> None:
    _, record = await recorded(worker, prompt="Once", stream=True)
    assert record.begun_at is not None
    assert record.first_at is not None
    assert record.taken_at <= record.begun_at <= record.first_at
