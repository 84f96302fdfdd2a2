"""Long lists in bodies are checked item by item, as vLLM's server checks them."""

from typing import Any

import pytest
from support.effort import turns

from worker.engine.requests.shapes import check_items
from worker.errors import InvalidInput

PATH = "/v1/responses"
RIGHT: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "5"},
    # What these lack vLLM completes.
    {"type": "reasoning", "summary": []},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi"}],
    },
]


def test_right_items_pass() -> None:
    check_items(PATH, {"input": RIGHT * 100})


@pytest.mark.parametrize("wrong", [0, {}, {"type": "message"}, "a", None])
def test_the_first_wrong_item_is_named_and_the_others_are_not_looked_at(wrong: Any) -> None:
    def check() -> InvalidInput:
        with pytest.raises(InvalidInput) as caught:
            check_items(PATH, {"input": [*RIGHT, *[wrong] * 400]})
        return caught.value

    refusal = check()
    assert refusal.param == "input.6"
    assert "input.6" in refusal.message or wrong is None
    # All of them take millions of turns, these seven a tenth of a million.
    assert turns(check) < 2_000_000


@pytest.mark.parametrize("items", ["a", 5, None, [], [{}] * 16])
def test_what_is_short_is_left_to_vllm(items: Any) -> None:
    check_items(PATH, {"input": items})
    check_items("/v1/embeddings", {"input": ["a"] * 2_000})
