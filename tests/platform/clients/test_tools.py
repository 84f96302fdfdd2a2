"""Tool calls by the `openai` package against `make endpoint`, in both of its APIs, both ways."""

import asyncio
import json
from typing import Any

import openai
import pytest
from demo_model import CALL, TOOL_USE

QUESTION, _, RESULT, ANSWER = TOOL_USE.messages
(TOOL,) = TOOL_USE.tools
NAME = TOOL["function"]["name"]
ARGUMENTS = {"job_id": "42"}
NAMED = {"type": "function", "function": {"name": NAME}}
CHAT: dict[str, Any] = {
    **{"model": "demo", "messages": [QUESTION], "tools": [TOOL]},
    **{"temperature": 0, "max_tokens": 100},
}
# The model was taught one call; for two, its words are given.
TWO_CALLS: dict[str, Any] = {
    **CHAT,
    "extra_body": {"structured_outputs": {"choice": [f"{CALL}\n{CALL.replace('42', '43')}"]}},
}
RESPONSE: dict[str, Any] = {
    **{"model": "demo", "input": [QUESTION], "temperature": 0},
    "tools": [{"type": "function", **TOOL["function"]}],
}


def called(message: Any) -> list[tuple[str, Any]]:
    """Return the functions that a message calls, with their arguments."""
    functions = [call.function for call in message.tool_calls or []]
    return [(function.name, json.loads(function.arguments)) for function in functions]


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_a_tool_is_called_and_its_result_is_answered(
    openai_client: openai.OpenAI, choice: Any
) -> None:
    create = openai_client.chat.completions.create
    first = create(**CHAT, tool_choice=choice).choices[0]
    assert called(first.message) == [(NAME, ARGUMENTS)]
    # For a call that was forced by name, OpenAI's API has "stop".
    assert first.finish_reason == ("stop" if choice is NAMED else "tool_calls")
    assert first.message.tool_calls
    result = {**RESULT, "tool_call_id": first.message.tool_calls[0].id}
    second = create(**{**CHAT, "messages": [QUESTION, first.message, result]}).choices[0]
    assert (second.finish_reason, second.message.content) == ("stop", ANSWER["content"])


def test_without_a_choice_the_call_is_text(openai_client: openai.OpenAI) -> None:
    message = openai_client.chat.completions.create(**CHAT, tool_choice="none").choices[0].message
    assert (message.content, message.tool_calls or []) == (CALL, [])


def test_several_calls_at_once_have_different_ids(openai_client: openai.OpenAI) -> None:
    create = openai_client.chat.completions.create
    message = create(**TWO_CALLS).choices[0].message
    assert called(message) == [(NAME, {"job_id": job}) for job in ("42", "43")]
    assert message.tool_calls
    assert len({call.id for call in message.tool_calls}) == 2
    only = create(**TWO_CALLS, parallel_tool_calls=False)
    assert called(only.choices[0].message) == [(NAME, ARGUMENTS)]


def test_the_streaming_helper_puts_calls_together(openai_client: openai.OpenAI) -> None:
    with openai_client.chat.completions.stream(**TWO_CALLS) as stream:
        final = stream.get_final_completion().choices[0]
    assert called(final.message) == [(NAME, {"job_id": job}) for job in ("42", "43")]
    assert final.finish_reason == "tool_calls"


async def test_the_deltas_of_a_stream_make_up_the_call(
    async_openai_client: openai.AsyncOpenAI,
) -> None:
    async def streamed(choice: Any) -> list[Any]:
        stream = await async_openai_client.chat.completions.create(
            **CHAT, tool_choice=choice, stream=True
        )
        deltas = [event.choices[0].delta async for event in stream]
        assert not any(delta.content for delta in deltas)
        return [call for delta in deltas for call in delta.tool_calls or []]

    for parts in await asyncio.gather(*map(streamed, ("auto", "required", NAMED))):
        assert (bool(parts[0].id), parts[0].function.name) == (True, NAME)
        assert json.loads("".join(part.function.arguments or "" for part in parts)) == ARGUMENTS
        assert {part.index for part in parts} == {0}


def test_a_response_calls_a_tool_and_answers_its_result(openai_client: openai.OpenAI) -> None:
    (call,) = openai_client.responses.create(**RESPONSE).output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == (NAME, ARGUMENTS)
    output = {"call_id": call.call_id, "output": RESULT["content"]}
    turns = [QUESTION, call, {"type": "function_call_output", **output}]
    second = openai_client.responses.create(**{**RESPONSE, "input": turns})
    assert second.output_text == ANSWER["content"]


def test_the_streaming_helper_of_responses_puts_the_call_together(
    openai_client: openai.OpenAI,
) -> None:
    with openai_client.responses.stream(**RESPONSE) as stream:
        events: list[Any] = list(stream)
        (final,) = stream.get_final_response().output
    delta, done = (f"response.function_call_arguments.{kind}" for kind in ("delta", "done"))
    (arguments,) = [event.arguments for event in events if event.type == done]
    assert "".join(event.delta for event in events if event.type == delta) == arguments
    assert final.type == "function_call"
    assert (final.name, json.loads(final.arguments)) == (NAME, ARGUMENTS)
