"""The OpenAI path on the real engine: vLLM's own server, called in process."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from demo_model import DIALOGUES, PASSAGE

Ask = Callable[..., Awaitable[list[Any]]]

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What does this worker do?"}]
GREEDY = {"temperature": 0, "max_tokens": 500}


def events(chunks: list[str]) -> list[Any]:
    """Decode a stream as a client does."""
    data = [line.removeprefix("data: ") for line in "".join(chunks).split("\n\n") if line]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


def streamed_text(chunks: list[str]) -> str:
    deltas = [event["choices"][0]["delta"] for event in events(chunks) if event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("dialogue", DIALOGUES)
async def test_a_chat_is_answered_as_the_model_was_taught(ask: Ask, dialogue: Any) -> None:
    for messages, expected in dialogue.turns:
        # Without a parser the call is text: the model's own words for it.
        tools = {"tools": dialogue.tools, "tool_choice": "none"} if dialogue.tools else {}
        body = {"messages": messages, **GREEDY, **tools}
        (whole,) = await ask(openai_route=CHAT, openai_input=body)
        chunks = await ask(openai_route=CHAT, openai_input={**body, "stream": True})
        assert whole["choices"][0]["message"]["content"] == expected
        assert streamed_text(chunks) == expected


async def test_a_completion_is_answered(ask: Ask) -> None:
    body = {"prompt": PASSAGE[0], **GREEDY}
    (whole,) = await ask(openai_route="/v1/completions", openai_input=body)
    chunks = await ask(openai_route="/v1/completions", openai_input={**body, "stream": True})
    assert whole["choices"][0]["text"] == PASSAGE[1]
    assert "".join(event["choices"][0]["text"] for event in events(chunks)) == PASSAGE[1]


async def test_every_yield_holds_whole_events_and_their_number_grows(ask: Ask) -> None:
    # More than there are in four yields, also where vLLM merges some that wait to be read.
    body = {"messages": QUESTION, "stream": True, "max_tokens": 500, "ignore_eos": True}
    chunks = await ask(openai_route=CHAT, openai_input=body)
    assert all(chunk.endswith("\n\n") for chunk in chunks)
    # The first one also has the event that opens the choice, and holds no text.
    assert [chunk.count("data: ") for chunk in chunks[:4]] == [1 + 1, 3, 9, 27]


@pytest.mark.parametrize("word", ["true", 1, "on"])
async def test_whatever_vllms_server_takes_for_true_streams(ask: Ask, word: Any) -> None:
    body = {"messages": QUESTION, **GREEDY, "stream": word}
    chunks = await ask(openai_route=CHAT, openai_input=body)
    assert streamed_text(chunks).startswith("This worker turns a Hugging Face model into")


async def test_the_job_id_is_in_the_response_id(ask: Ask) -> None:
    (whole,) = await ask(openai_route=CHAT, openai_input={"messages": QUESTION, **GREEDY})
    assert "job-1" in whole["id"]


@pytest.mark.parametrize("route", ["/v1/models", "/models", "models"])
async def test_models_names_the_model_and_not_its_path(ask: Ask, route: str) -> None:
    (listed,) = await ask(openai_route=route)
    (model,) = listed["data"]
    assert (model["id"], model["root"]) == ("demo", "demo")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"messages": []}, 400, "at least one message"),
        (
            {"messages": QUESTION, "model": "nope"},
            404,
            "There is no model or adapter 'nope'; this worker serves demo",
        ),
        ({"messages": QUESTION, "max_tokens": -1}, 400, "at least 1"),
        ({"messages": [{"role": "user", "content": "token " * 2000}]}, 400, "has 2,010 tokens"),
        (
            {"messages": {"secret": "that was put in the wrong place"}},
            400,
            "messages: Input should be a valid list",
        ),
        ({"messages": QUESTION, "logit_bias": {"it's": "secret"}}, 400, "valid number"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "content": "secret"}]}]},
            400,
            "",
        ),
        ({"messages": QUESTION, "logit_bias": {"999999": 1}}, 400, "vocab"),
        ({"messages": QUESTION, "structured_outputs": {"regex": "(("}}, 400, "regex"),
        ({"prompt": "Hi"}, 400, "messages: Field required"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_keeps_vllms_status_and_words_but_not_the_prompt(
    ask: Ask, body: dict[str, Any], status: int, message: str, stream: bool
) -> None:
    (chunk,) = await ask(openai_route=CHAT, openai_input={**body, "stream": stream})
    error = json.loads(chunk["error"])["error"]
    assert error["code"] == status
    assert message in error["message"]
    assert "secret" not in error["message"]
    assert (error["retryable"], error["request_id"]) == (False, "job-1")


@pytest.mark.parametrize("wrong", [5, True, 1.5, {}, {"role": "user"}, [[{}]], [None]], ids=repr)
@pytest.mark.parametrize(
    ("route", "name"),
    [
        (CHAT, "messages"),
        ("/tokenize", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/v1/responses", "input"),
        ("/v1/completions", "prompt"),
        ("/tokenize", "prompt"),
        ("/v1/responses", "tools"),
        (CHAT, "tools"),
    ],
)
async def test_a_value_of_a_wrong_type_is_refused_by_the_name_of_its_parameter(
    ask: Ask, route: str, name: str, wrong: Any
) -> None:
    conversation = {"messages": QUESTION, "input": "Hi", "max_tokens": 1} if name == "tools" else {}
    (chunk,) = await ask(openai_route=route, openai_input={**conversation, name: wrong})
    error = json.loads(chunk["error"])["error"]
    assert (error["code"], error["param"].split(".")[0]) == (400, name)
    assert error["message"].startswith(name)
    assert " object " not in error["message"].replace("dictionary or object to extract", "")


async def test_the_calls_of_a_message_are_a_list(ask: Ask) -> None:
    messages = [*QUESTION, {"role": "assistant", "tool_calls": 5}]
    (chunk,) = await ask(openai_route=CHAT, openai_input={"messages": messages})
    error = json.loads(chunk["error"])["error"]
    assert error["message"] == "messages.1.tool_calls: Input should be a valid list"
    assert (error["code"], error["param"]) == (400, "messages.1.tool_calls")


async def test_a_method_that_a_route_does_not_have_is_refused(ask: Ask) -> None:
    (chunk,) = await ask(route=CHAT, method="GET")
    error = json.loads(chunk["error"])["error"]
    assert (error["code"], error["type"]) == (405, "MethodNotAllowedError")
