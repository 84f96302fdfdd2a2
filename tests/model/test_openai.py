"""The OpenAI path on the real engine: vLLM's own server, called in process."""

from typing import Any

import pytest
from demo_model import DIALOGUES
from model.conftest import Ask
from support.engine.scripted import CHAT, events_in

from worker.app import Worker
from worker.record import JobRecord

QUESTION = [{"role": "user", "content": "What does this worker do?"}]


@pytest.mark.parametrize("dialogue", DIALOGUES)
async def test_a_chat_is_answered_as_the_model_was_taught(ask: Ask, dialogue: Any) -> None:
    for messages, expected in dialogue.turns:
        # Without a parser the call is text: the model's own words for it.
        tools = {"tools": dialogue.tools, "tool_choice": "none"} if dialogue.tools else {}
        body = {"messages": messages, "temperature": 0, "max_tokens": 500, **tools}
        (whole,) = await ask(openai_route=CHAT, openai_input=body)
        chunks = await ask(openai_route=CHAT, openai_input={**body, "stream": True})
        assert whole["choices"][0]["message"]["content"] == expected
        assert "job-1" in whole["id"]
        *events, end = events_in("".join(chunks))
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == expected
        assert end == "[DONE]"


async def test_every_yield_holds_whole_events_and_their_number_grows(ask: Ask) -> None:
    # More than there are in four yields, also where vLLM merges some that wait to be read.
    body = {"messages": QUESTION, "stream": True, "max_tokens": 500, "ignore_eos": True}
    chunks = await ask(openai_route=CHAT, openai_input=body)
    assert all(chunk.endswith("\n\n") for chunk in chunks)
    # The first one also has the event that opens the choice, and holds no text.
    assert [chunk.count("data: ") for chunk in chunks[:4]] == [1 + 1, 3, 9, 27]


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
SHORT = {"temperature": 0, "max_tokens": 7, "ignore_eos": True}
SHORT_CHAT = {"messages": QUESTION, **SHORT}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, SHORT_CHAT),
        (CHAT, {**SHORT_CHAT, "n": 2, "temperature": 1}),
        (CHAT, {**SHORT_CHAT, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**SHORT_CHAT, "tools": [WEATHER], "tool_choice": "none"}),
        ("/v1/completions", {"prompt": "Once", **SHORT}),
        ("/v1/completions", {"prompt": ["Once", "Twice"], **SHORT, "n": 2, "temperature": 1}),
        ("/v1/responses", {"input": "Hi", "temperature": 0, "max_output_tokens": 7}),
        ("/v1/messages", {"messages": QUESTION, "max_tokens": 7, "temperature": 0}),
    ],
)
async def test_records_hold_vllms_tokens(worker: Worker, route: str, body: dict[str, Any]) -> None:
    async def recorded(*, stream: bool) -> tuple[Any, tuple[int | None, int | None]]:
        record = JobRecord("job-1")
        payload = {"openai_route": route, "openai_input": {**body, "stream": stream}}
        first, *_ = [part async for part in worker.handle({"id": "j", "input": payload}, record)]
        assert record.status == 200
        return first, (record.usage.prompt_tokens, record.usage.output_tokens)

    whole, counted = await recorded(stream=False)
    usage = whole["usage"]
    prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    assert min(prompt_tokens, output_tokens) > 0
    assert counted == (prompt_tokens, output_tokens) == (await recorded(stream=True))[1]
