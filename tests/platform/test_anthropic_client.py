"""The `anthropic` package, unchanged, against `make endpoint`."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
from demo_model import ANSWERS, MEMORY, PARAMETERS, PIRATE, TOOL_USE
from pydantic import BaseModel
from support.processes.local_endpoint import LocalEndpoint

COUNT = "Count to ten."
COUNTED = ANSWERS[COUNT]
# The package has no argument for the temperature.
MESSAGE: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": COUNT}],
    "max_tokens": 100,
    "extra_body": {"temperature": 0},
}
QUESTION, _, RESULT, ANSWER = TOOL_USE.messages
NAME = "job_status"
TOOL_MESSAGE: dict[str, Any] = {
    **MESSAGE,
    "messages": [QUESTION],
    "tools": [{"name": NAME, "input_schema": PARAMETERS}],
}


@pytest.fixture
def client(make_endpoint: LocalEndpoint) -> Iterator[anthropic.Anthropic]:
    url = make_endpoint.openai_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(make_endpoint: LocalEndpoint) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = make_endpoint.openai_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def said(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


class TestMessages:
    """`client.messages`."""

    def test_it_answers(self, client: anthropic.Anthropic) -> None:
        message = client.messages.create(**MESSAGE)
        assert (said(message), message.role, message.stop_reason) == (
            *(COUNTED, "assistant", "end_turn"),
        )

    def test_a_truncated_answer_has_the_reason(self, client: anthropic.Anthropic) -> None:
        assert client.messages.create(**{**MESSAGE, "max_tokens": 3}).stop_reason == "max_tokens"
        stopped = client.messages.create(**MESSAGE, stop_sequences=["three"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "three")
        assert said(stopped) == "one, two, "

    def test_the_system_prompt_and_earlier_turns_count(self, client: anthropic.Anthropic) -> None:
        system, question, answer = [message["content"] for message in PIRATE.messages]
        asked = {**MESSAGE, "messages": [{"role": "user", "content": question}]}
        assert said(client.messages.create(**asked, system=system)) == answer
        *turns, recalled = MEMORY.messages
        remembered = client.messages.create(**{**MESSAGE, "messages": turns})
        assert said(remembered) == recalled["content"]

    def test_the_streaming_helper_gives_texts_and_the_whole(
        self, client: anthropic.Anthropic
    ) -> None:
        with client.messages.stream(**MESSAGE) as stream:
            texts = list(stream.text_stream)
            whole = stream.get_final_message()
        assert "".join(texts) == said(whole) == COUNTED
        assert whole.stop_reason == "end_turn"
        assert whole.usage.output_tokens >= len(texts)

    def test_a_stream_has_its_events_in_order(self, client: anthropic.Anthropic) -> None:
        kinds = [event.type for event in client.messages.create(**MESSAGE, stream=True)]
        assert list(dict.fromkeys(kinds)) == [
            *("message_start", "content_block_start", "content_block_delta"),
            *("content_block_stop", "message_delta", "message_stop"),
        ]

    def test_tokens_are_counted_before_they_are_spent(self, client: anthropic.Anthropic) -> None:
        asked = {"model": "demo", "messages": MESSAGE["messages"], "system": "You are a pirate."}
        counted = client.messages.count_tokens(**asked)
        spent = client.messages.create(**MESSAGE, system=asked["system"]).usage.input_tokens
        assert counted.input_tokens == spent

    def test_an_answer_is_parsed_into_a_pydantic_model(self, client: anthropic.Anthropic) -> None:
        class Description(BaseModel):
            name: str
            streams: bool
            chunks: list[int]

        asked = {"role": "user", "content": "Describe the worker as JSON."}
        parsed = client.messages.parse(
            **{**MESSAGE, "messages": [asked]}, output_format=Description
        )
        described = Description(name="demo", streams=True, chunks=[1, 3, 9, 27])
        assert parsed.parsed_output == described

    async def test_the_asyncio_client_does_the_same(
        self, async_client: anthropic.AsyncAnthropic
    ) -> None:
        async def streamed() -> str:
            async with async_client.messages.stream(**MESSAGE) as stream:
                return await stream.get_final_text()

        async def whole() -> str:
            return said(await async_client.messages.create(**MESSAGE))

        assert set(await asyncio.gather(streamed(), whole(), streamed())) == {COUNTED}


class TestTools:
    """Calls of tools, and their results."""

    @pytest.mark.parametrize("kind", ["auto", "any", "tool"])
    def test_a_tool_is_called_and_its_result_is_answered(
        self, client: anthropic.Anthropic, kind: str
    ) -> None:
        choice: Any = {"type": kind, "name": NAME} if kind == "tool" else {"type": kind}
        first = client.messages.create(**TOOL_MESSAGE, tool_choice=choice)
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
        second = client.messages.create(**{**TOOL_MESSAGE, "messages": turns})
        assert (said(second), second.stop_reason) == (ANSWER["content"], "end_turn")

    def test_a_call_that_the_model_writes_wrong_is_no_mistake_of_its_caller(
        self, client: anthropic.Anthropic
    ) -> None:
        # It has not learnt this tool, and writes a list in the place of the input.
        types = {"name": "string", "streams": "boolean", "chunks": "array"}
        properties: dict[str, Any] = {name: {"type": type_} for name, type_ in types.items()}
        properties["chunks"]["items"] = {"type": "integer"}
        schema = {"properties": properties, "required": [*types], "type": "object"}
        asked = {
            **MESSAGE,
            "messages": [{"role": "user", "content": "Describe the worker as JSON."}],
            "tools": [{"name": "D", "description": "", "input_schema": schema}],
            "max_tokens": 200,
        }
        message = client.messages.create(**asked, tool_choice={"type": "tool", "name": "D"})
        assert {block.type for block in message.content} <= {"text", "tool_use"}

    def test_the_streaming_helper_puts_the_call_together(self, client: anthropic.Anthropic) -> None:
        with client.messages.stream(**TOOL_MESSAGE) as stream:
            parts = [event.partial_json for event in stream if event.type == "input_json"]
            (call,) = stream.get_final_message().content
        assert json.loads("".join(parts)) == {"job_id": "42"}
        assert call.type == "tool_use"
        assert (call.name, call.input) == (NAME, {"job_id": "42"})


class TestErrors:
    """The content of its exceptions."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_bad_value_is_a_bad_request(self, client: anthropic.Anthropic, stream: bool) -> None:
        hot = {**MESSAGE, "extra_body": {"temperature": 9}}
        with pytest.raises(anthropic.BadRequestError, match="temperature") as refused:
            client.messages.create(**hot, stream=stream)
        body: Any = refused.value.body
        assert (body["type"], body["error"]["code"]) == ("error", 400)

    def test_an_unknown_model_is_not_found(self, client: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.NotFoundError, match="There is no model or adapter 'nope'"):
            client.messages.create(**{**MESSAGE, "model": "nope"})

    def test_a_prompt_that_is_too_long_is_a_bad_request(self, client: anthropic.Anthropic) -> None:
        endless = {"role": "user", "content": "token " * 3000}
        with pytest.raises(anthropic.BadRequestError, match="2048"):
            client.messages.create(**{**MESSAGE, "messages": [endless]})
