"""Tool calls by the `openai` package against `make endpoint`, in both of its APIs, both ways."""

import asyncio
import json
from typing import Any

import openai
import pytest
from demo_model import CALL, TOOL_USE
from pydantic import BaseModel

QUESTION, _, RESULT, ANSWER = TOOL_USE.messages
(TOOL,) = TOOL_USE.tools
NAME = TOOL["function"]["name"]
ARGUMENTS = {"job_id": "42"}
NAMED = {"type": "function", "function": {"name": NAME}}
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [QUESTION],
    "tools": [TOOL],
    "temperature": 0,
    "max_tokens": 100,
}
# The model was taught one call; for two, its words are given.
OTHER_CALL = CALL.replace("42", "43")
TWO_CALLS: dict[str, Any] = {
    **CHAT,
    "extra_body": {"structured_outputs": {"choice": [f"{CALL}\n{OTHER_CALL}"]}},
}
RESPONSE: dict[str, Any] = {
    "model": "demo",
    "input": [QUESTION],
    "tools": [{"type": "function", **TOOL["function"]}],
    "temperature": 0,
}


def called(message: Any) -> list[tuple[str, Any]]:
    """Return the functions that a message calls, with their arguments."""
    functions = [call.function for call in message.tool_calls or []]
    return [(function.name, json.loads(function.arguments)) for function in functions]


class TestChat:
    """`client.chat.completions`."""

    @pytest.mark.parametrize("choice", ["auto", "required", NAMED])
    def test_a_tool_is_called_and_its_result_is_answered(
        self, client: openai.OpenAI, choice: Any
    ) -> None:
        first = client.chat.completions.create(**CHAT, tool_choice=choice).choices[0]
        assert called(first.message) == [(NAME, ARGUMENTS)]
        # For a call that was forced by name, OpenAI's API has "stop".
        assert first.finish_reason == ("stop" if choice is NAMED else "tool_calls")
        assert first.message.tool_calls
        result = {**RESULT, "tool_call_id": first.message.tool_calls[0].id}
        turns = {**CHAT, "messages": [QUESTION, first.message, result]}
        second = client.chat.completions.create(**turns).choices[0]
        assert (second.finish_reason, second.message.content) == ("stop", ANSWER["content"])

    def test_without_a_choice_the_call_is_text(self, client: openai.OpenAI) -> None:
        message = client.chat.completions.create(**CHAT, tool_choice="none").choices[0].message
        assert (message.content, message.tool_calls or []) == (CALL, [])

    def test_several_calls_at_once_have_different_ids(self, client: openai.OpenAI) -> None:
        message = client.chat.completions.create(**TWO_CALLS).choices[0].message
        assert called(message) == [(NAME, {"job_id": job}) for job in ("42", "43")]
        assert message.tool_calls
        assert len({call.id for call in message.tool_calls}) == 2
        only = client.chat.completions.create(**TWO_CALLS, parallel_tool_calls=False)
        assert called(only.choices[0].message) == [(NAME, ARGUMENTS)]

    def test_the_streaming_helper_puts_calls_together(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(**TWO_CALLS) as stream:
            done, begun = list[str](), set[int]()
            for event in stream:
                if event.type == "tool_calls.function.arguments.done":
                    done.append(json.loads(event.arguments)["job_id"])
                elif event.type == "chunk" and not event.chunk.choices[0].finish_reason:
                    begun |= {call.index for call in event.chunk.choices[0].delta.tool_calls or []}
            final = stream.get_final_completion().choices[0]
        # The helper has no event for a last call that begins in the chunk that ends the answer, as
        # it does where the stream falls behind the engine.
        assert done == (["42", "43"] if 1 in begun else ["42"])
        assert called(final.message) == [(NAME, {"job_id": job}) for job in ("42", "43")]
        assert final.finish_reason == "tool_calls"

    async def test_the_deltas_of_a_stream_make_up_the_call(
        self, async_client: openai.AsyncOpenAI
    ) -> None:
        async def streamed(choice: Any) -> list[Any]:
            stream = await async_client.chat.completions.create(
                **CHAT, tool_choice=choice, stream=True
            )
            deltas = [event.choices[0].delta async for event in stream]
            assert not any(delta.content for delta in deltas)
            return [call for delta in deltas for call in delta.tool_calls or []]

        for first, *rest in await asyncio.gather(
            streamed("auto"), streamed("required"), streamed(NAMED)
        ):
            assert first.id
            assert first.function.name == NAME
            parts = [part.function.arguments or "" for part in (first, *rest)]
            assert parts
            assert json.loads("".join(parts)) == ARGUMENTS
            assert {part.index for part in (first, *rest)} == {0}

    def test_arguments_are_parsed_into_a_pydantic_model(self, client: openai.OpenAI) -> None:
        class JobStatus(BaseModel):
            job_id: str

        tool = openai.pydantic_function_tool(JobStatus, name=NAME)
        whole = client.chat.completions.parse(**{**CHAT, "tools": [tool]}, tool_choice="required")
        (call,) = whole.choices[0].message.tool_calls or []
        assert call.function.parsed_arguments == JobStatus(**ARGUMENTS)


class TestResponses:
    """`client.responses`."""

    def test_a_tool_is_called_and_its_result_is_answered(self, client: openai.OpenAI) -> None:
        (call,) = client.responses.create(**RESPONSE).output
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == (NAME, ARGUMENTS)
        output = {"call_id": call.call_id, "output": RESULT["content"]}
        turns = [QUESTION, call, {"type": "function_call_output", **output}]
        assert (
            client.responses.create(**{**RESPONSE, "input": turns}).output_text
            == (ANSWER["content"])
        )

    def test_the_streaming_helper_puts_the_call_together(self, client: openai.OpenAI) -> None:
        with client.responses.stream(**RESPONSE) as stream:
            events: list[Any] = list(stream)
            (final,) = stream.get_final_response().output
        delta, done = (f"response.function_call_arguments.{kind}" for kind in ("delta", "done"))
        parts = [event.delta for event in events if event.type == delta]
        (arguments,) = [event.arguments for event in events if event.type == done]
        assert parts
        assert "".join(parts) == arguments
        assert final.type == "function_call"
        assert (final.name, json.loads(final.arguments)) == (NAME, json.loads(arguments))
