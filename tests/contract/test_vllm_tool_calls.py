"""Answers of Anthropic's API whose model wrote a tool's input wrong, by vLLM's own converter."""

from typing import Any

import pytest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

from worker.engine.requests.tool_calls import keep_what_was_written

RIGHT = '{"name": "worker"}'


def converted(finish_reason: str, *arguments: str, content: str | None = None) -> dict[str, Any]:
    messages: Any = object.__new__(AnthropicServingMessages)
    keep_what_was_written(messages)
    calls = [{"function": {"name": "describe", "arguments": text}} for text in arguments]
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    answer = ChatCompletionResponse.model_validate(
        {
            "model": "demo",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )
    found: dict[str, Any] = messages.messages_full_converter(answer).model_dump()
    return found


@pytest.mark.parametrize("wrong", ["[1, 2]", "5", '{"name": "wor', ""])
@pytest.mark.parametrize(
    ("finish_reason", "stop_reason"),
    [("length", "max_tokens"), ("stop", "end_turn"), ("tool_calls", "end_turn")],
)
def test_what_is_no_object_comes_as_text(wrong: str, finish_reason: str, stop_reason: str) -> None:
    answer = converted(finish_reason, wrong)
    assert [(part["type"], part["text"]) for part in answer["content"]] == [("text", wrong)]
    assert answer["stop_reason"] == stop_reason


def test_the_other_calls_and_the_text_before_stay() -> None:
    answer = converted("tool_calls", RIGHT, "[1]", content="Look:")
    text, call = answer["content"]
    assert text["text"] == "Look:\n[1]"
    assert (call["type"], call["input"]) == ("tool_use", {"name": "worker"})
    assert answer["stop_reason"] == "tool_use"


def test_without_generation_there_is_nothing_to_convert() -> None:
    keep_what_was_written(None)
