"""Tests that answers can be sent back, and that vLLM reads all parts of a conversation."""

import copy
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
)
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse
from vllm.entrypoints.openai.responses.utils import (
    build_response_output_items,
    construct_input_messages,
)
from vllm.sampling_params import SamplingParams

from worker.dialects.openai import forward
from worker.engine import Model
from worker.engine.run.corrections import keep_invalid_tool_input
from worker.job import OpenAIJob, RawJob
from worker.routes.vllm import ROUTES
from worker.settings import Settings

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
QUESTION = {"role": "user", "content": "Is job 42 done?"}
ENGINE: Any = SimpleNamespace(
    model=Model(("demo",), 1024, "cpu", tasks=frozenset({"generate"})),
    body_keys=lambda path: frozenset(),
)
SETTINGS = Settings.from_env({"MODEL_NAME": "org/name"})


def prepare(path: str, body: dict[str, Any]) -> dict[str, Any]:
    route = next(route for route in ROUTES if route.path == path)
    job = OpenAIJob(route=path, body=body)
    prepared, _ = forward.prepare_body(job, route, ENGINE, "job-1", SETTINGS)
    return prepared


def convert_anthropic(body: dict[str, Any]) -> Any:
    """Return the request for a chat that vLLM makes of a request of Anthropic's API."""
    serving: Any = object.__new__(AnthropicServingMessages)
    request = AnthropicMessagesRequest.model_validate(prepare(MESSAGES, body))
    return serving.to_chat_completion_request(request)


# Answers of vLLM's server, and the bodies in which official clients send them back:

TRANSPORT = httpx2.MockTransport(lambda request: httpx2.Response(400, json={}))
HTTP: dict[str, Any] = {"api_key": "-", "base_url": "http://local/v1", "max_retries": 0}
OPENAI = openai.OpenAI(**HTTP, http_client=httpx2.Client(transport=TRANSPORT))
ANTHROPIC = anthropic.Anthropic(**HTTP, http_client=httpx2.Client(transport=TRANSPORT))


def sent_body(create: Callable[..., Any], **request: Any) -> dict[str, Any]:
    """Return the body that a method of an official client sends."""
    try:
        create(model="demo", **request)
    except (openai.BadRequestError, anthropic.BadRequestError) as error:
        body: dict[str, Any] = json.loads(error.request.content)
        return body
    raise AssertionError


CUSTOM_TOOL = "custom-tool"
RESPONSE_TOOLS = [{"type": "custom", "name": CUSTOM_TOOL}]
OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
# A model may write anything, and its answer may be cut off.
ARGUMENTS = st.dictionaries(st.text(), OBJECTS, max_size=3).map(json.dumps) | st.text()
NAMES = st.text() | st.just(CUSTOM_TOOL)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3)
# Each answer is sent back several times.
FEW = settings(max_examples=40)
any_answer = given(
    reasoning=st.none() | st.text(min_size=1), content=st.none() | st.text(min_size=1), calls=CALLS
)


def make_answer(
    reasoning: str | None, content: str | None, calls: list[tuple[str, str]]
) -> ChatCompletionResponse:
    functions = [{"function": {"name": name, "arguments": text}} for name, text in calls]
    message = {"role": "assistant", "content": content, "reasoning": reasoning}
    return ChatCompletionResponse.model_validate(
        {
            "model": "demo",
            "choices": [{"index": 0, "message": {**message, "tool_calls": functions}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )


def calls_in(message: dict[str, Any]) -> list[tuple[str, str]]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [(function["name"], function["arguments"]) for function in functions]


@pytest.mark.slow
@FEW
@any_answer
def test_an_answer_of_a_chat_is_a_message_of_the_next_request(
    reasoning: str | None, content: str | None, calls: list[tuple[str, str]]
) -> None:
    answer = json.loads(make_answer(reasoning, content, calls).model_dump_json())
    own = answer["choices"][0]["message"]
    parsed = openai.types.chat.ChatCompletion.model_validate(answer).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "5"}
        for call in own.get("tool_calls") or ()
    ]
    former_name = {key: own[key] for key in own if key != "reasoning"}
    reasoned = {**former_name, "reasoning_content": reasoning}
    for message in (own, parsed, parsed.model_dump(), reasoned):
        turns = [QUESTION, message, *results]
        body = sent_body(OPENAI.chat.completions.create, messages=turns)
        for messages in (
            prepare(CHAT, body)["messages"],
            RawJob.from_input({"messages": body["messages"]}).chat_messages,
        ):
            request = ChatCompletionRequest.model_validate({"messages": messages})
            _, read, *others = request.messages
            assert (read.get("reasoning"), read.get("content")) == (reasoning, content)
            assert calls_in(read) == calls
            assert len(others) == len(calls)


@pytest.mark.slow
@FEW
@any_answer
def test_the_output_of_a_response_is_the_input_of_the_next_request(
    reasoning: str | None, content: str | None, calls: list[tuple[str, str]]
) -> None:
    first = ResponsesRequest.model_validate({"input": "Hi", "tools": RESPONSE_TOOLS})
    functions = [SimpleNamespace(id=None, name=name, arguments=text) for name, text in calls]
    items: Any = build_response_output_items(reasoning, content, functions, tools=first.tools)
    answer = ResponsesResponse.from_request(
        first, SamplingParams(), "demo", 1, output=items, status="completed"
    )
    own = json.loads(answer.model_dump_json())
    parsed = openai.types.responses.Response.model_validate(own).output
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "5"}
        for item in own["output"]
        if "call_id" in item
    ]
    for output in (own["output"], parsed):
        turns = [QUESTION, *output, *results]
        body = sent_body(OPENAI.responses.create, input=turns, tools=RESPONSE_TOOLS)
        request = ResponsesRequest.model_validate(prepare(RESPONSES, body))
        messages: Any = construct_input_messages(request_input=request.input)
        read = [message for message in messages if message["role"] == "assistant"]
        found = {key: message[key] for message in read for key in message}
        assert (found.get("reasoning"), found.get("content")) == (reasoning, content)
        expected = [call for call in calls if call[0] != CUSTOM_TOOL]
        assert [call for call in calls_in(found) if call[0] != CUSTOM_TOOL] == expected
        assert len(calls_in(found)) == len(results) == len(calls)


@FEW
@any_answer
def test_a_message_of_anthropics_api_is_one_of_the_next_request(
    reasoning: str | None, content: str | None, calls: list[tuple[str, str]]
) -> None:
    serving: Any = object.__new__(AnthropicServingMessages)
    keep_invalid_tool_input(serving)
    answer = serving.messages_full_converter(make_answer(reasoning, content, calls))
    own = answer.model_dump(mode="json", exclude_none=True)
    parsed = anthropic.types.Message.model_validate(own).content
    uses = [block for block in own["content"] if block["type"] == "tool_use"]
    texts = [block["text"] for block in own["content"] if block["type"] == "text"]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "5"} for use in uses]
    for blocks in (own["content"], parsed):
        turns = [
            QUESTION,
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [*results, {"type": "text", "text": "Well?"}]},
        ]
        body = sent_body(ANTHROPIC.messages.create, messages=turns, max_tokens=9)
        _, read, *others = convert_anthropic(body).messages
        assert (read.get("reasoning"), read.get("content") or "") == (reasoning, "".join(texts))
        found = [(name, json.loads(arguments)) for name, arguments in calls_in(read)]
        assert found == [(use["name"], use["input"]) for use in uses]
        assert len(others) == len(uses) + 1


# Content blocks of Anthropic's API, as vLLM's chats read them:

SEARCH_RESULT = {
    "type": "search_result",
    "source": "https://example.com/a",
    "title": "Chunks",
    "content": [{"type": "text", "text": "They grow."}],
}
IMAGE = {"type": "image", "source": {"type": "url", "url": "data:image/png;base64,AAAA"}}
DOCUMENT = {
    "type": "document",
    "title": "Sizes",
    "source": {"type": "content", "content": [{"type": "text", "text": "1, 3, 9"}, IMAGE]},
}
REFERENCE = {"type": "tool_reference", "tool_name": "get_weather"}
TEXT = "Chunks\nhttps://example.com/a\nThey grow."


def test_the_text_of_every_block_reaches_the_chat() -> None:
    blocks = [SEARCH_RESULT, DOCUMENT, REFERENCE]
    content = [{"type": "tool_result", "tool_use_id": "t", "content": blocks}, *blocks]
    before = copy.deepcopy(content)
    request = convert_anthropic(
        {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "system": blocks[:1]}
    )
    assert content == before
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    texts = [TEXT, "Sizes", "1, 3, 9", "get_weather"]
    parts = [{"type": "text", "text": text} for text in texts]
    assert request.messages == [
        {"role": "system", "content": TEXT},
        {"role": "tool", "tool_call_id": "t", "content": "\n".join(texts)},
        {"role": "user", "content": [url]},
        {"role": "user", "content": [*parts[:3], url, parts[3]]},
    ]
