"""Prompts as they reach the model: the same tokens on both paths."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from demo_model import PASSAGE, TOOL_USE

from worker.job import RawJob

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

Ask = Callable[..., Awaitable[list[Any]]]

QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "Count to ten."}]
BEGUN = [*QUESTION, {"role": "assistant", "content": "one, two, three"}]
CALLED = [
    {"role": "user", "content": "Is job 42 done?"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "job_status", "arguments": '{"job_id": "42"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": '{"status": "COMPLETED"}'},
]
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": QUESTION},
    {"messages": [{"role": "system", "content": "You are a pirate. 🏴‍☠️"}, *QUESTION]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}], "name": "Ann"}]},
    {"messages": TOOL_USE.messages, "tools": TOOL_USE.tools},
    {"messages": CALLED, "tools": TOOL_USE.tools},
    {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False},
    {"messages": BEGUN, "add_generation_prompt": False},
    {"messages": QUESTION, "chat_template_kwargs": {"add_generation_prompt": False}},
]


async def ids_of(engine: "InProcessEngine", **payload: Any) -> list[int]:
    prompt = await engine.generation.prompts.render_job(RawJob.read(payload))
    ids: list[int] = prompt["prompt_token_ids"]
    return ids


@pytest.mark.parametrize("payload", CONVERSATIONS)
async def test_a_conversation_is_the_same_prompt_on_both_paths(
    payload: dict[str, Any], ask: Ask, engine: "InProcessEngine"
) -> None:
    # The demo worker has no tool parser, so its OpenAI path takes tools only to show them.
    choice = {"tool_choice": "none"} if "tools" in payload else {}
    body = {**payload, **choice, "max_tokens": 1, "return_token_ids": True}
    (answer,) = await ask(openai_route="/v1/chat/completions", openai_input=body)
    assert await ids_of(engine, **payload) == answer["prompt_token_ids"]


async def test_a_message_that_is_continued_begins_no_new_turn(
    ask: Ask, engine: "InProcessEngine"
) -> None:
    payload: dict[str, Any] = {"messages": BEGUN, "continue_final_message": True}
    assert await ids_of(engine, **payload) == await ids_of(
        engine, **payload, add_generation_prompt=False
    )
    (whole,) = await ask(**payload, sampling_params={"temperature": 0, "max_tokens": 40})
    assert whole["choices"][0]["tokens"] == [", four, five, six, seven, eight, nine, ten"]


async def test_a_prompt_as_ids_is_the_prompt_as_text(ask: Ask, engine: "InProcessEngine") -> None:
    params = {"temperature": 0, "max_tokens": 60}
    ids = await ids_of(engine, prompt=PASSAGE[0])
    (as_text,) = await ask(prompt=PASSAGE[0], sampling_params=params)
    assert [as_text] == await ask(prompt=ids, sampling_params=params)
    assert as_text["choices"][0]["tokens"] == [PASSAGE[1]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answers_ids_are_returned_where_asked_for(
    stream: bool, ask: Ask, engine: "InProcessEngine"
) -> None:
    params = {"temperature": 0, "max_tokens": 40}
    chunks = await ask(
        messages=QUESTION, sampling_params=params, stream=stream, return_token_ids=True
    )
    choices = [chunk["choices"][0] for chunk in chunks]
    ids = [id_ for choice in choices for id_ in choice["token_ids"]]
    assert len(ids) == chunks[-1]["usage"]["output"]
    text_ = "".join(text for choice in choices for text in choice["tokens"])
    # The last token ends the turn.
    assert await ids_of(engine, prompt=text_) == [0, *ids[:-1]]


@pytest.mark.parametrize(
    ("payload", "status", "message"),
    [
        ({"prompt": [5, 10**6]}, 400, "out of vocabulary"),
        ({"prompt": [5] * 2000}, 400, "1,024"),
        ({"messages": QUESTION, "tools": [{"x": 1}]}, 400, "tools.0.function"),
        (
            {"messages": QUESTION, "chat_template_kwargs": {"chat_template": "x"}},
            400,
            "vLLM sets it itself",
        ),
        (
            {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
            400,
            "Cannot set both",
        ),
        ({"prompt": [5], "apply_chat_template": True}, 400, "token ids are no text"),
        ({"prompt": "Hi", "model": "other"}, 404, "this worker serves demo"),
        ({"prompt": "Hi", "lora": "demo"}, 404, "no model or adapter"),
        ({"prompt": "Hi", "model": "a", "lora": "b"}, 400, "two adapters"),
    ],
)  # fmt: skip - one line a case
async def test_conversations_that_can_not_be_rendered_are_refused(
    payload: dict[str, Any], status: int, message: str, ask: Ask
) -> None:
    (failed,) = await ask(**payload)
    error = json.loads(failed["error"])["error"]
    assert error["code"] == status
    assert message in error["message"]


async def test_the_model_may_be_named(ask: Ask) -> None:
    params = {"max_tokens": 2, "ignore_eos": True}
    (whole,) = await ask(prompt="Hi", model="demo", sampling_params=params)
    assert whole["usage"]["output"] == 2
