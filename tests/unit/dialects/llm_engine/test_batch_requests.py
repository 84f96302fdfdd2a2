"""Requests for LLM Engine's batches: accepted and refused keys, and the lines of a batch."""

import json
from typing import Any

import pytest

from worker.batches.lines import BatchLimits
from worker.dialects.llm_engine import batch_inputs
from worker.dialects.llm_engine.batch_inputs import (
    BatchCompletionsRequest,
    SharedParameters,
    drop_optional_nulls,
)
from worker.errors import InvalidInput

# A body as LLM Engine's client sends it: every option that is not set is null.
CLIENT_BODY: dict[str, Any] = {
    **dict.fromkeys(("input_data_path", "priority", "tool_config", "cpus")),
    "output_data_path": "out.json",
    "labels": {},
    "data_parallelism": 1,
    "max_runtime_sec": 86_400,
    "content": {"prompts": ["Hi"], "max_new_tokens": 3, "temperature": 0.0},
    "model_config": {
        **{"model": "demo", "checkpoint_path": None, "trust_remote_code": False},
        **{"num_shards": 1, "labels": {"team": "a"}},
    },
}
SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}


def parse_request(**keys: Any) -> BatchCompletionsRequest:
    return BatchCompletionsRequest.from_body({**CLIENT_BODY, **keys})


def refusal(**keys: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_request(**keys)
    return caught.value


def test_defaults_that_the_client_sends_have_no_effect() -> None:
    request = parse_request()
    assert (request.config.model, request.ignored_keys) == ("demo", [])
    assert request.metadata == {"team": "a"}
    values = {"model_config": {"model": "m"}, "output_data_path": "o", "input_data_path": "i"}
    request = BatchCompletionsRequest.from_body(values)
    assert (request.max_runtime_sec, request.data_parallelism, request.priority) == (
        86_400,
        1,
        None,
    )


def make_labels(count: int) -> dict[str, str]:
    return {str(number): "" for number in range(count)}


@pytest.mark.parametrize(
    ("param", "keys"),
    [
        ("model_config.model", {"model_config": {}}),
        ("model_config.model", {"model_config": {"model": ""}}),
        ("model_config.labels", {"model_config": {"model": "m", "labels": {"a" * 65: ""}}}),
        ("output_data_path", {"output_data_path": None}),
        ("output_data_path", {"output_data_path": "./" * 2_048 + "a"}),
        *(("data_parallelism", {"data_parallelism": value}) for value in (0, 65)),
        *(("max_runtime_sec", {"max_runtime_sec": value}) for value in (0, 172_801)),
        *(("labels.a", {"labels": {"a": value}}) for value in (1, "\ud800")),
        # With the model's label there are 17, one above the limit.
        ("labels", {"labels": make_labels(16)}),
        *(("priority", {"priority": value}) for value in (3, "a" * 65, "\ud800")),
        *(("content", keys) for keys in ({"content": None}, {"input_data_path": "in.json"})),
        ("outptu", {"outptu": "x"}),
        ("tool_config", {"tool_config": {"name": "code_evaluator"}}),
    ],
)
def test_a_refusal_names_the_field(param: str, keys: dict[str, Any]) -> None:
    assert parse_request(data_parallelism=64, max_runtime_sec=172_800, labels=make_labels(15))
    error = refusal(**keys)
    assert error.param == param
    assert param in error.message


def test_a_misspelt_key_is_refused_with_the_right_key() -> None:
    assert "did you mean 'model_config'" in refusal(model_confg={}).message


def test_resources_are_accepted_and_reported_to_have_no_effect() -> None:
    config = {"model": "demo", "num_shards": 2, "checkpoint_path": "s3://a/b", "revision": None}
    labels = {"team": "b", "x": "y"}
    model = {**config, "labels": {"team": "a"}}
    request = parse_request(gpus=2, cpus="8", labels=labels, model_config=model)
    names = "cpus, gpus, model_config.num_shards, model_config.checkpoint_path"
    ignored_keys = f"{names}: the endpoint's settings decide"
    assert request.metadata == {**labels, "without_effect": ignored_keys}
    # Only the first of many or long keys are named.
    config |= {f"{number}{'a' * 10_000}": 1 for number in range(100)}
    assert len(parse_request(model_config=config).metadata["without_effect"]) < 2_000


@pytest.mark.parametrize(
    ("priority", "scheduler_priority"),
    [
        *((None, None), ("3", 3), (" -2 ", -2), ("high", None), ("1e3", None)),
        *(("9" * 9, 999_999_999), ("9" * 10, None)),
    ],
)
def test_only_a_number_becomes_the_schedulers_priority(
    priority: str | None, scheduler_priority: int | None
) -> None:
    request = parse_request(priority=priority)
    assert (request.priority, request.scheduler_priority) == (priority, scheduler_priority)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_new_tokens", value) for value in (None, 0)),
        *(("temperature", value) for value in (None, 1.1, -0.1)),
        *(("presence_penalty", -0.1), ("frequency_penalty", 2.1), ("top_k", -2), ("top_p", 0)),
        *(("stop_sequences", "x"), ("return_token_log_probs", 1), ("skip_special_tokens", "no")),
        ("guided_json", {}),
    ],
)
def test_an_invalid_shared_parameter_is_refused_by_name(name: str, value: Any) -> None:
    assert (
        SharedParameters.from_body({**SHARED, "top_k": None, "stop_sequences": None}).top_k is None
    )
    with pytest.raises(InvalidInput) as caught:
        SharedParameters.from_body({**SHARED, name: value}, container="content")
    assert (caught.value.param or "").startswith(f"content.{name}")


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
CHATS = "/v1/chat/completions"


LIMITS = BatchLimits(max_lines=10, max_line_bytes=10_000)


def read_prompt_lines(
    *texts: str, priority: int | None = None, **shared: Any
) -> list[dict[str, Any]]:
    request = parse_request(content={"prompts": [*texts], **SHARED, **shared})
    return [
        json.loads(line) for line in batch_inputs.convert_v1(request, None, LIMITS, priority)[1]
    ]


def read_body_lines(*items: Any, priority: int | None = None) -> list[dict[str, Any]]:
    request = parse_request(content=[*items])
    return [
        json.loads(line) for line in batch_inputs.convert_v2(request, None, LIMITS, priority)[1]
    ]


def read_route(item: Any) -> str:
    return batch_inputs.convert_v2(parse_request(content=[item]), None, LIMITS)[0]


def test_prompts_are_completions_with_the_shared_parameters() -> None:
    completion = {"method": "POST", "url": "/v1/completions"}
    body = {"model": "demo", "max_tokens": 3, "temperature": 0}
    assert read_prompt_lines("a", "b\n") == [
        {"custom_id": "0", **completion, "body": {**body, "prompt": "a"}},
        {"custom_id": "1", **completion, "body": {**body, "prompt": "b\n"}},
    ]
    # Every parameter gets its name in OpenAI's API.
    same = {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "skip_special_tokens": False}
    same |= {"presence_penalty": 1, "frequency_penalty": 2}
    renamed = {"max_new_tokens": 3, "stop_sequences": ["x"], "return_token_log_probs": True}
    (line,) = read_prompt_lines("a", priority=7, **same, **renamed)
    openai_keys = {"model": "demo", "max_tokens": 3, "stop": ["x"], "logprobs": 1}
    assert line["body"] == {**same, **openai_keys, "priority": 7, "prompt": "a"}


def test_the_batch_overrides_the_model_and_the_stream_of_a_body() -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    (line,) = read_body_lines(
        {**CHAT, **stream, "model": "other", "seed": None, "user": "ä\n\u2028"}
    )
    body = {**CHAT, "user": "ä\n\u2028", "model": "demo"}
    assert line == {"custom_id": "0", "method": "POST", "url": CHATS, "body": body}


def test_all_bodies_of_a_batch_must_be_for_one_route() -> None:
    completion = {"prompt": "Hi", "messages": None}
    routes = [CHATS, "/v1/completions", "/v1/responses"]
    assert [read_route(item) for item in (CHAT, completion, {"input": "Hi"})] == routes
    with pytest.raises(InvalidInput, match="for /v1/completions, but the first is for") as caught:
        read_body_lines(CHAT, CHAT, completion, {"input": "Hi"})
    assert caught.value.param == "content.2"


@pytest.mark.parametrize("item", [None, "Hi", [], {}, {"model": "demo"}, {**CHAT, "prompt": "Hi"}])
def test_an_invalid_body_is_refused_with_its_index(item: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content\.0: an object with one of messages"):
        read_route(item)
    with pytest.raises(InvalidInput, match=r"content\.2: an object with one of messages"):
        read_body_lines(CHAT, CHAT, item)


def test_a_body_keeps_its_own_priority() -> None:
    lines = read_body_lines(CHAT, {**CHAT, "priority": 0}, {**CHAT, "priority": -1}, priority=5)
    assert [line["body"]["priority"] for line in lines] == [5, 5, -1]


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_a_value_that_json_cannot_represent_is_refused_with_its_index(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content\.1: a (text|number) in it"):
        read_body_lines(CHAT, {**CHAT, "user": value})


SCHEMA: dict[str, Any] = {"enum": ["a", None], "default": None, "properties": {"b": None}}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
PART = {"type": "text", "text": "Hi"}
NAMED = {"name": "a", "strict": True}
VALUES = {
    "tools": [{"function": {"name": "f", "parameters": SCHEMA}}],
    **{"guided_json": SCHEMA, "metadata": {"a": None}},
}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"seed": None, "n": 1}, {"n": 1}),
        (
            {"messages": [{"content": [{**PART, "x": None}], "name": None}]},
            {"messages": [{"content": [PART]}]},
        ),
        (
            {"messages": [{"content": None, "tool_calls": [{**CALL, "index": None}]}]},
            {"messages": [{"tool_calls": [CALL]}]},
        ),
        ({"tools": [{**CALL, "strict": None}]}, {"tools": [CALL]}),
        # A schema gets its name in OpenAI's API.
        (
            {"response_format": {"json_schema": {**NAMED, "description": None, "schema_": SCHEMA}}},
            {"response_format": {"json_schema": {**NAMED, "schema": SCHEMA}}},
        ),
        (VALUES, VALUES),
    ],
)
def test_nulls_are_dropped_except_in_schemas_and_metadata(
    sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert drop_optional_nulls(sent) == expected
