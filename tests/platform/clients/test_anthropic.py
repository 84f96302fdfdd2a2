"""Tests with the unchanged `anthropic` package and `make endpoint`."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
from demo_model import ANSWERS, CALL, PARAMETERS, TOOL_USE
from pydantic import BaseModel
from support.processes.servers import LocalEndpoint

COUNT = "Count to ten."
COUNT_ANSWER = ANSWERS[COUNT]
DESCRIBE = [{"role": "user", "content": "Describe the worker as JSON."}]
# The package has no argument for the temperature.
MESSAGE: dict[str, Any] = {
    **{"model": "demo", "max_tokens": 100, "extra_body": {"temperature": 0}},
    "messages": [{"role": "user", "content": COUNT}],
}
QUESTION, _, RESULT, ANSWER = TOOL_USE.messages
NAME = "job_status"
TOOLS = [{"name": NAME, "input_schema": PARAMETERS}]
TOOL_MESSAGE: dict[str, Any] = {**MESSAGE, "messages": [QUESTION], "tools": TOOLS}


@pytest.fixture
def anthropic_client(make_endpoint: LocalEndpoint) -> Iterator[anthropic.Anthropic]:
    url = make_endpoint.openai_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_anthropic_client(
    make_endpoint: LocalEndpoint,
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = make_endpoint.openai_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def message_text(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_a_truncated_answer_has_its_stop_reason(anthropic_client: anthropic.Anthropic) -> None:
    create = anthropic_client.messages.create
    assert create(**MESSAGE).stop_reason == "end_turn"
    assert create(**{**MESSAGE, "max_tokens": 3}).stop_reason == "max_tokens"
    stopped = create(**MESSAGE, stop_sequences=["three"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "three")
    assert message_text(stopped) == "one, two, "


def test_a_stream_has_its_events_in_order(anthropic_client: anthropic.Anthropic) -> None:
    events = list(anthropic_client.messages.create(**TOOL_MESSAGE, stream=True))
    assert list(dict.fromkeys(event.type for event in events)) == [
        *("message_start", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    deltas: list[Any] = [event.delta for event in events if event.type == "content_block_delta"]
    assert json.loads("".join(delta.partial_json for delta in deltas)) == {"job_id": "42"}


def test_a_call_that_is_cut_off_is_text_with_and_without_a_stream(
    anthropic_client: anthropic.Anthropic,
) -> None:
    request: Any = {**TOOL_MESSAGE, "stop_sequences": [NAME]}
    whole = anthropic_client.messages.create(**request)
    with anthropic_client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert message_text(streamed) == message_text(whole) == CALL.partition(NAME)[0]
    assert streamed.stop_reason == whole.stop_reason == "stop_sequence"


def test_an_answer_is_parsed_into_a_pydantic_model(anthropic_client: anthropic.Anthropic) -> None:
    class Description(BaseModel):
        name: str
        streams: bool
        chunks: list[int]

    request = {**MESSAGE, "messages": DESCRIBE}
    parsed = anthropic_client.messages.parse(**request, output_format=Description).parsed_output
    assert parsed == Description(name="demo", streams=True, chunks=[1, 3, 9, 27])


async def test_the_streaming_helper_of_the_async_client_yields_texts_and_the_final_message(
    async_anthropic_client: anthropic.AsyncAnthropic,
) -> None:
    async def stream_text() -> tuple[str, anthropic.types.Message]:
        async with async_anthropic_client.messages.stream(**MESSAGE) as stream:
            texts = [text async for text in stream.text_stream]
            return "".join(texts), await stream.get_final_message()

    for text, whole in await asyncio.gather(stream_text(), stream_text(), stream_text()):
        assert text == message_text(whole) == COUNT_ANSWER
        assert (whole.role, whole.stop_reason) == ("assistant", "end_turn")


@pytest.mark.parametrize("kind", ["auto", "any", "tool"])
def test_a_tool_is_called_and_its_result_is_answered(
    anthropic_client: anthropic.Anthropic, kind: str
) -> None:
    choice: Any = {"type": kind, "name": NAME} if kind == "tool" else {"type": kind}
    first = anthropic_client.messages.create(**TOOL_MESSAGE, tool_choice=choice)
    (call,) = first.content
    assert call.type == "tool_use"
    assert (call.name, call.input) == (NAME, {"job_id": "42"})
    assert first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT["content"]}
    turns = [
        QUESTION,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = anthropic_client.messages.create(**{**TOOL_MESSAGE, "messages": turns})
    assert (message_text(second), second.stop_reason) == (ANSWER["content"], "end_turn")


def test_an_invalid_tool_call_by_the_model_is_not_an_error_of_the_caller(
    anthropic_client: anthropic.Anthropic,
) -> None:
    # The model never learned this tool and writes a list instead of the input object.
    properties: dict[str, Any] = {
        "name": {"type": "string"},
        "streams": {"type": "boolean"},
        "chunks": {"type": "array", "items": {"type": "integer"}},
    }
    schema = {"properties": properties, "required": [*properties], "type": "object"}
    tools = [{"name": "D", "description": "", "input_schema": schema}]
    request = {**MESSAGE, "messages": DESCRIBE, "tools": tools, "max_tokens": 200}
    message = anthropic_client.messages.create(**request, tool_choice={"type": "tool", "name": "D"})
    assert {block.type for block in message.content} <= {"text", "tool_use"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_value_is_a_bad_request(anthropic_client: anthropic.Anthropic, stream: bool) -> None:
    hot = {**MESSAGE, "extra_body": {"temperature": 9}}
    with pytest.raises(anthropic.BadRequestError, match="temperature") as refused:
        anthropic_client.messages.create(**hot, stream=stream)
    body: Any = refused.value.body
    assert (body["type"], body["error"]["code"]) == ("error", 400)
