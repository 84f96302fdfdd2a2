"""Tests with the unchanged `openai` package and `make endpoint`."""

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from demo_model import ANSWERS, CALL, PASSAGE, PIRATE, TOOL_USE
from pydantic import BaseModel
from support.engine.requests import ENDLESS
from support.processes.background import HUNG_S
from support.processes.servers import ACCOUNT, LocalEndpoint

from llm_worker_client import RunpodTransport

COUNT = "Count to ten."
COUNT_ANSWER = ANSWERS[COUNT]
CHAT: dict[str, Any] = {
    **{"model": "demo", "temperature": 0},
    "messages": [{"role": "user", "content": COUNT}],
}
DESCRIBE_MESSAGES: Any = [{"role": "user", "content": "Describe the worker as JSON."}]
RESPONSE: dict[str, Any] = {"model": "demo", "input": COUNT, "temperature": 0}
LONG: dict[str, Any] = {
    **{name: ENDLESS[name] for name in ("max_tokens", "n")},
    **{"temperature": 1, "extra_body": {"ignore_eos": True}},
}


class Description(BaseModel):
    """The description of the worker that the demo model has learned."""

    name: str
    streams: bool
    chunks: list[int]


DESCRIPTION = Description(name="demo", streams=True, chunks=[1, 3, 9, 27])


# Chats:


def test_a_chat_is_parsed_into_a_pydantic_model(openai_client: openai.OpenAI) -> None:
    request = {**CHAT, "messages": DESCRIBE_MESSAGES}
    whole = openai_client.chat.completions.parse(**request, response_format=Description)
    assert whole.choices[0].message.parsed == DESCRIPTION


async def test_the_streaming_helper_of_the_async_client_yields_deltas_and_the_whole_answer(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    async def chat() -> Any:
        async with async_openai_client.chat.completions.stream(**CHAT) as stream:
            deltas = [event.delta async for event in stream if event.type == "content.delta"]
            return "".join(deltas), (await stream.get_final_completion()).choices[0]

    for text, choice in await asyncio.gather(chat(), chat(), chat()):
        assert text == choice.message.content == COUNT_ANSWER
        assert choice.finish_reason == "stop"


async def test_parameters_have_their_effect(async_openai_client: openai.AsyncOpenAI) -> None:
    async def chat(**more: Any) -> Any:
        return (await async_openai_client.chat.completions.create(**{**CHAT, **more})).choices

    cut, several, logged, free, named = await asyncio.gather(
        chat(max_completion_tokens=3),
        chat(n=3, temperature=2, seed=1, max_tokens=8),
        chat(logprobs=True, top_logprobs=2, max_tokens=2),
        chat(response_format={"type": "json_object"}, max_tokens=60),
        chat(model="tiny/demo"),
    )
    assert cut[0].finish_reason == "length"
    assert len({choice.message.content for choice in several}) == 3
    assert [len(token.top_logprobs) for token in logged[0].logprobs.content] == [2, 2]
    assert free[0].message.content.lstrip().startswith("{")
    assert named[0].message.content == COUNT_ANSWER


def test_a_chat_over_the_transport_is_the_same_whole_and_streamed(
    make_endpoint: LocalEndpoint,
) -> None:
    transport = RunpodTransport("local", ACCOUNT, make_endpoint.api_url)
    http = httpx2.Client(transport=transport, timeout=HUNG_S)
    with openai.OpenAI(api_key="any", http_client=http, max_retries=0) as client:
        whole = client.chat.completions.create(**CHAT)
        assert whole.choices[0].message.content == COUNT_ANSWER
        events = client.chat.completions.create(**CHAT, stream=True)
        deltas = [event.choices[0].delta.content or "" for event in events]
    assert ("".join(deltas), len(deltas) > 2) == (COUNT_ANSWER, True)


# Responses:


def test_instructions_come_before_the_input_of_a_response(openai_client: openai.OpenAI) -> None:
    system, question, answer = [message["content"] for message in PIRATE.messages]
    request = {**RESPONSE, "input": [{"role": "user", "content": question}]}
    whole = openai_client.responses.create(**request, instructions=system)
    assert (whole.status, whole.output_text) == ("completed", answer)


def test_a_response_streams_its_events_in_order(openai_client: openai.OpenAI) -> None:
    events = list(openai_client.responses.create(**RESPONSE, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == COUNT_ANSWER
    assert list(dict.fromkeys(event.type for event in events)) == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *("response.output_text.delta", "response.output_text.done"),
        *("response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_response_is_parsed_into_a_pydantic_model(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    request: dict[str, Any] = {**RESPONSE, "input": DESCRIBE_MESSAGES, "text_format": Description}
    assert (await async_openai_client.responses.parse(**request)).output_parsed == DESCRIPTION
    async with async_openai_client.responses.stream(**request) as stream:
        assert (await stream.get_final_response()).output_parsed == DESCRIPTION


# Completions and models:


def test_a_completion_echoes_its_prompt(openai_client: openai.OpenAI) -> None:
    whole = openai_client.completions.create(
        model="demo", prompt=PASSAGE[0], temperature=0, max_tokens=400, echo=True
    )
    assert whole.choices[0].text == "".join(PASSAGE)


def test_models_are_listed_and_described(openai_client: openai.OpenAI) -> None:
    names = [model.id for model in openai_client.models.list()]
    assert names[:3] == ["demo", "tiny/demo", "minilm"]
    assert [openai_client.models.retrieve(name).id for name in names] == names
    with pytest.raises(openai.NotFoundError, match="There is no model 'tiny/nope'"):
        openai_client.models.retrieve("tiny/nope")


# Tool calls in chats and responses:

QUESTION, _, RESULT, ANSWER = TOOL_USE.messages
(TOOL,) = TOOL_USE.tools
NAME = TOOL["function"]["name"]
ARGUMENTS = {"job_id": "42"}
NAMED_TOOL = {"type": "function", "function": {"name": NAME}}
TOOL_CHAT: dict[str, Any] = {
    **{"model": "demo", "messages": [QUESTION], "tools": [TOOL]},
    **{"temperature": 0, "max_tokens": 100},
}
# The model has learned one call only, so its answer with two calls is prescribed.
TWO_CALLS: dict[str, Any] = {
    **TOOL_CHAT,
    "extra_body": {"structured_outputs": {"choice": [f"{CALL}\n{CALL.replace('42', '43')}"]}},
}
TOOL_RESPONSE: dict[str, Any] = {
    **{"model": "demo", "input": [QUESTION], "temperature": 0},
    "tools": [{"type": "function", **TOOL["function"]}],
}


def function_calls(message: Any) -> list[tuple[str, Any]]:
    """Return the functions that a message calls, with their arguments."""
    functions = [call.function for call in message.tool_calls or []]
    return [(function.name, json.loads(function.arguments)) for function in functions]


@pytest.mark.parametrize(
    "choice", ["auto", "required", NAMED_TOOL], ids=["auto", "required", "named"]
)
def test_a_tool_is_called_and_its_result_is_answered(
    openai_client: openai.OpenAI, choice: Any
) -> None:
    create = openai_client.chat.completions.create
    first = create(**TOOL_CHAT, tool_choice=choice).choices[0]
    assert function_calls(first.message) == [(NAME, ARGUMENTS)]
    # OpenAI's API returns "stop" for a call that was forced by name.
    assert first.finish_reason == ("stop" if choice is NAMED_TOOL else "tool_calls")
    assert first.message.tool_calls
    result = {**RESULT, "tool_call_id": first.message.tool_calls[0].id}
    second = create(**{**TOOL_CHAT, "messages": [QUESTION, first.message, result]}).choices[0]
    assert (second.finish_reason, second.message.content) == ("stop", ANSWER["content"])


def test_parallel_tool_calls_have_different_ids(openai_client: openai.OpenAI) -> None:
    create = openai_client.chat.completions.create
    message = create(**TWO_CALLS).choices[0].message
    assert function_calls(message) == [(NAME, {"job_id": job}) for job in ("42", "43")]
    assert message.tool_calls
    assert len({call.id for call in message.tool_calls}) == 2
    only = create(**TWO_CALLS, parallel_tool_calls=False)
    assert function_calls(only.choices[0].message) == [(NAME, ARGUMENTS)]


async def test_the_deltas_of_a_stream_form_the_tool_call(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    async def stream_calls(choice: Any) -> list[Any]:
        stream = await async_openai_client.chat.completions.create(
            **TOOL_CHAT, tool_choice=choice, stream=True
        )
        deltas = [event.choices[0].delta async for event in stream]
        assert not any(delta.content for delta in deltas)
        return [call for delta in deltas for call in delta.tool_calls or []]

    for parts in await asyncio.gather(*map(stream_calls, ("auto", "required", NAMED_TOOL))):
        assert (bool(parts[0].id), parts[0].function.name) == (True, NAME)
        assert json.loads("".join(part.function.arguments or "" for part in parts)) == ARGUMENTS
        assert {part.index for part in parts} == {0}


def test_a_response_calls_a_tool_and_answers_its_result(openai_client: openai.OpenAI) -> None:
    (call,) = openai_client.responses.create(**TOOL_RESPONSE).output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == (NAME, ARGUMENTS)
    output = {"call_id": call.call_id, "output": RESULT["content"]}
    turns = [QUESTION, call, {"type": "function_call_output", **output}]
    second = openai_client.responses.create(**{**TOOL_RESPONSE, "input": turns})
    assert second.output_text == ANSWER["content"]


def test_a_call_that_is_cut_off_is_text_with_and_without_a_stream(
    openai_client: openai.OpenAI,
) -> None:
    cut_call = CALL.partition(NAME)[0]
    with openai_client.chat.completions.stream(**TOOL_CHAT, stop=[NAME]) as chat:
        choice = chat.get_final_completion().choices[0]
    assert (choice.message.content, choice.finish_reason) == (cut_call, "stop")
    whole = openai_client.chat.completions.create(**TOOL_CHAT, stop=[NAME])
    assert whole.choices[0].message.content == cut_call
    stop: Any = {"extra_body": {"stop": [NAME]}}
    with openai_client.responses.stream(**TOOL_RESPONSE, **stop) as response:
        assert response.get_final_response().output_text == cut_call
    assert openai_client.responses.create(**TOOL_RESPONSE, **stop).output_text == cut_call


# Errors:


@pytest.mark.parametrize("stream", [False, True])
def test_the_error_for_a_bad_value_has_all_error_fields_of_the_worker(
    openai_client: openai.OpenAI, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        openai_client.chat.completions.create(**{**CHAT, "temperature": 9}, stream=stream)
    body: Any = refused.value.body
    assert (body["code"], body["type"]) == (refused.value.status_code, refused.value.type)
    assert (refused.value.status_code, body["retryable"]) == (400, False)
    assert body["request_id"]


def test_unknown_models_and_routes_are_not_found(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="model or adapter 'nope'") as refused:
        openai_client.chat.completions.create(**{**CHAT, "model": "nope"})
    assert refused.value.type == "NotFoundError"
    with pytest.raises(openai.NotFoundError, match="There is no route '/v1/moderations'"):
        openai_client.moderations.create(input="Hi")
    with pytest.raises(openai.NotFoundError, match="There is no route '/v1/responses/nope'"):
        openai_client.responses.retrieve("nope")


def test_a_client_retries_after_a_timeout_and_the_timeout_cancels_the_jobs(
    make_endpoint: LocalEndpoint, openai_client: openai.OpenAI
) -> None:
    before = {job["id"] for job in make_endpoint.control("jobs")["jobs"]}
    hasty = openai_client.with_options(timeout=1, max_retries=1)
    with pytest.raises(openai.APITimeoutError):
        hasty.chat.completions.create(**{**CHAT, **LONG})
    # The engine serves the next job after it has aborted the cancelled jobs.
    assert openai_client.chat.completions.create(**CHAT, max_tokens=2).usage
    jobs = make_endpoint.control("jobs")["jobs"]
    statuses = [job["status"] for job in jobs if job["id"] not in before]
    assert statuses == ["CANCELLED", "CANCELLED", "COMPLETED"]
