"""What events of a stream count in a chunk."""

import json

import pytest

from worker.routes.openai.events import weight


def chat(**delta: object) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    text = json.dumps({"id": "chatcmpl-1", "choices": [choice]}, separators=(",", ":"))
    return f"data: {text}\n\n"


@pytest.mark.parametrize(
    "event",
    [
        chat(role="assistant", content=""),
        'event: response.created\ndata: {"type":"response.created"}\n\n',
        'event: response.output_item.added\ndata: {"item":{}}\n\n',
        'event: message_start\ndata: {"message":{}}\n\n',
        'event: content_block_start\ndata: {"index":0}\n\n',
    ],
)
def test_an_announcement_waits_for_what_it_announces(event: str) -> None:
    assert weight(event) == 0


@pytest.mark.parametrize(
    "event",
    [
        chat(content="a"),
        chat(role="assistant", content="a"),
        'event: response.output_text.delta\ndata: {"delta":"a"}\n\n',
        'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n',
        "data: [DONE]\n\n",
    ],
)
def test_a_part_of_the_answer_counts(event: str) -> None:
    assert weight(event) == 1
