"""Requests for LLM Engine's batches: their keys, and their input as the lines of a batch."""

import gzip
import json
from pathlib import Path
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
    assert (request.max_runtime_sec, request.data_parallelism) == (86_400, 1)
    assert request.priority is None


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
        *(("temperature", value) for value in (None, 1.1)),
        *(
            ("presence_penalty", -0.1),
            ("top_k", -2),
            ("top_p", 0),
            ("top_p", 1.1),
            ("guided_json", {}),
        ),
        *(("stop_sequences", "x"), ("return_token_log_probs", 1)),
    ],
)
def test_an_invalid_shared_parameter_is_refused_by_name(name: str, value: Any) -> None:
    nulls = dict.fromkeys(("top_k", "stop_sequences"))
    assert SharedParameters.from_body({**SHARED, **nulls}).top_k is None
    with pytest.raises(InvalidInput) as caught:
        SharedParameters.from_body({**SHARED, name: value}, container="content")
    assert (caught.value.param or "").startswith(f"content.{name}")


# Lines:

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi\nthere"}]}
CHATS = "/v1/chat/completions"
LIMITS = BatchLimits(max_lines=4, max_line_bytes=400)
# Limits for lines of any length.
FEW_VALUES = BatchLimits(max_lines=4, max_line_bytes=10**9, max_line_values=1_000)


def read_lines(
    version: str,
    content: Any,
    path: Path | None = None,
    limits: BatchLimits = LIMITS,
    priority: int | None = None,
) -> tuple[str, list[Any]]:
    """Return the route and the lines of a request's content, or of the file if there is one."""
    convert = {"v1": batch_inputs.convert_v1, "v2": batch_inputs.convert_v2}[version]
    source = {"content": None, "input_data_path": "in.json"} if path else {"content": content}
    url, lines = convert(parse_request(**source), path, limits, priority)
    return url, [json.loads(line) for line in lines]


def read_bodies(*items: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the bodies of a v2 request's lines."""
    return [line["body"] for line in read_lines("v2", [*items], **options)[1]]


def write_input(directory: Path, content: Any) -> Path:
    path = directory / "in.json"
    is_encoded = isinstance(content, bytes)
    path.write_bytes(content if is_encoded else json.dumps(content, indent=2).encode())
    return path


def test_inputs_are_read_from_requests_and_files(tmp_path: Path) -> None:
    prompts = ["a", "b", "", "é\n"]
    for content in ({"prompts": prompts, **SHARED}, {**SHARED, "prompts": prompts}):
        url, lines = read_lines("v1", content)
        assert [line["body"]["prompt"] for line in lines] == prompts
        assert read_lines("v1", None, write_input(tmp_path, content)) == (url, lines)
    url, lines = read_lines("v2", [CHAT] * 3)
    assert (url, [line["body"] for line in lines]) == (CHATS, [{**CHAT, "model": "demo"}] * 3)
    for start in (b"", b"\xef\xbb\xbf"):
        path = write_input(tmp_path, start + json.dumps([CHAT] * 3).encode())
        assert read_lines("v2", None, path) == (url, lines)


def test_prompts_are_completions_with_the_shared_parameters() -> None:
    completion = {"method": "POST", "url": "/v1/completions"}
    body = {"model": "demo", "max_tokens": 3, "temperature": 0}
    assert read_lines("v1", {"prompts": ["a", "b\n"], **SHARED})[1] == [
        {"custom_id": "0", **completion, "body": {**body, "prompt": "a"}},
        {"custom_id": "1", **completion, "body": {**body, "prompt": "b\n"}},
    ]
    # Every parameter gets its name in OpenAI's API.
    same = {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "skip_special_tokens": False}
    same |= {"presence_penalty": 1, "frequency_penalty": 2}
    renamed = {"max_new_tokens": 3, "stop_sequences": ["x"], "return_token_log_probs": True}
    (line,) = read_lines("v1", {"prompts": ["a"], **same, **renamed}, priority=7)[1]
    openai_keys = {"model": "demo", "max_tokens": 3, "stop": ["x"], "logprobs": 1}
    assert line["body"] == {**same, **openai_keys, "priority": 7, "prompt": "a"}


def test_the_batch_overrides_the_model_and_the_stream_of_a_body() -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    body = {**CHAT, **stream, "model": "other", "seed": None, "user": "ä\n\u2028"}
    assert read_bodies(body) == [{**CHAT, "user": "ä\n\u2028", "model": "demo"}]


def test_all_bodies_of_a_batch_must_be_for_one_route() -> None:
    completion = {"prompt": "Hi", "messages": None}
    routes = [CHATS, "/v1/completions", "/v1/responses"]
    for item, route in zip((CHAT, completion, {"input": "Hi"}), routes, strict=True):
        assert read_lines("v2", [item])[0] == route
    with pytest.raises(InvalidInput, match="for /v1/completions, but the first is for") as caught:
        read_bodies(CHAT, CHAT, completion, {"input": "Hi"})
    assert caught.value.param == "content.2"


@pytest.mark.parametrize("item", [None, "Hi", [], {}, {"model": "demo"}, {**CHAT, "prompt": "Hi"}])
def test_an_invalid_body_is_refused_with_its_index(item: Any) -> None:
    for valid in ([], [CHAT] * 2):
        message = rf"content\.{len(valid)}: an object with one of messages"
        with pytest.raises(InvalidInput, match=message):
            read_bodies(*valid, item)


def test_a_body_keeps_its_own_priority() -> None:
    bodies = read_bodies(CHAT, {**CHAT, "priority": 0}, {**CHAT, "priority": -1}, priority=5)
    assert [body["priority"] for body in bodies] == [5, 5, -1]


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_a_value_that_json_cannot_represent_is_refused_with_its_index(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content\.1: a (text|number) in it"):
        read_bodies(CHAT, {**CHAT, "user": value})


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


# Files:

PROMPTS = {**SHARED, "prompts": ["a"]}
INVALID: dict[str, list[Any]] = {
    "v1": [
        *([], "a", ["a"], SHARED, {"prompts": ["a"]}, {**PROMPTS, "temperatur": 0}),
        *({**SHARED, "prompts": prompts} for prompts in ([], "a", [3], ["a"] * 5)),
    ],
    "v2": [[], "a", PROMPTS, ["a"], [CHAT] * 5],
}


@pytest.mark.parametrize(
    ("version", "content"),
    [(name, content) for name in INVALID for content in INVALID[name]],
    ids=str,
)
def test_invalid_input_is_refused_in_requests_and_in_files(
    tmp_path: Path, version: str, content: Any
) -> None:
    for path in (None, write_input(tmp_path, content)):
        with pytest.raises(InvalidInput) as caught:
            read_lines(version, content, path)
        if (content, path) == (PROMPTS, None):
            assert "/v1/llm/batch-completions" in caught.value.message


@pytest.mark.parametrize(
    "broken",
    [
        *(b"", b"[", b"{", b'["\xff"]', b"[]x", b"[NaN]", b"[1e]", b"[{},]", b"[{} {}]"),
        *(b"[{}", b"[{}]]", b"[" + b"9" * 5_000 + b"]", b"[1e999]"),
    ],
    ids=lambda text: text.decode(errors="replace")[-9:],
)
def test_a_file_that_is_no_json_is_refused_without_its_path(tmp_path: Path, broken: bytes) -> None:
    path = write_input(tmp_path, broken.replace(b"{}", json.dumps(CHAT).encode()))
    for version in INVALID:
        with pytest.raises(InvalidInput) as caught:
            read_lines(version, None, path)
        assert caught.value.message.startswith("input_data_path: it is not valid JSON: ")
        assert str(tmp_path) not in caught.value.message


def test_a_file_may_have_a_single_prompt(tmp_path: Path) -> None:
    _, lines = read_lines("v1", None, write_input(tmp_path, {**SHARED, "prompts": ["a"]}))
    assert [line["body"]["prompt"] for line in lines] == ["a"]


def test_a_missing_or_compressed_file_is_refused_with_its_key(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "in.json"):
        with pytest.raises(InvalidInput, match=r"^input_data_path: there is no such file$"):
            read_lines("v2", None, path)
    path = write_input(tmp_path, gzip.compress(b"[]"))
    for version in INVALID:
        with pytest.raises(InvalidInput, match=r"^input_data_path: .* is compressed \(gzip\)$"):
            read_lines(version, None, path)


@pytest.mark.parametrize("length", [300, 500])
def test_an_item_too_long_for_a_line_is_refused_with_its_index(tmp_path: Path, length: int) -> None:
    long = {"messages": [{"role": "user", "content": "x" * length}]}
    for path in (None, write_input(tmp_path, [CHAT, long])):
        with pytest.raises(InvalidInput, match=r"^content\.1: more than 400 bytes"):
            read_lines("v2", [CHAT, long], path)
    with pytest.raises(InvalidInput, match=r"content\.prompts\.1: more than 400 bytes"):
        read_lines("v1", {**SHARED, "prompts": ["a", "x" * length]})


# A caller's file must not exhaust the worker's memory: 18 MB of empty lists took 400 MiB.
EMPTY_LISTS = b'{"prompts": ["a"], "stop_sequences": [%b' % (b"[]," * 100_000)
NO_TEXT = r"content\.prompts\.1: a prompt is a text"


@pytest.mark.parametrize(
    ("version", "content", "limits", "message"),
    [
        ("v1", b'{"prompts": ["a"], "prompts": ["b"]}', LIMITS, "'prompts' occurs twice"),
        ("v1", EMPTY_LISTS, LIMITS, "a value in it has more than 400 bytes"),
        ("v1", EMPTY_LISTS, FEW_VALUES, "more than 1,000 values that are no numbers"),
        *(
            ("v1", b'{"prompts": ["a", ' + item * 10_000, LIMITS, NO_TEXT)
            for item in (b"[[],", b"[")
        ),
        ("v1", b'{"prompts": [' + b'"",' * 100_000, LIMITS, "more than 4 requests"),
        ("v2", b'["' + b"x" * 1_000_000, LIMITS, "a value in it has more than 400 bytes"),
        (
            "v2",
            b'[{"messages": ' + b"[" * 700 + b"]" * 700 + b"}]",
            FEW_VALUES,
            "nested too deeply",
        ),
        *(
            ("v2", b'[{"messages": [' + item * 10_000, FEW_VALUES, "more than 1,000 values")
            for item in (b"[],", b"{},", b"null,", b'"",', b'{"a":0},')
        ),
        ("v2", b'[{"messages": [' + b"1," * 30_000, FEW_VALUES, "more than 20,000 numbers"),
    ],
    ids=lambda value: repr(value)[:24] if isinstance(value, bytes) else None,
)
def test_reading_a_file_stops_at_the_first_exceeded_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    content: bytes,
    limits: BatchLimits,
    message: str,
) -> None:
    monkeypatch.setattr(batch_inputs, "MAX_TOKEN_IDS", 20_000)
    with pytest.raises(InvalidInput, match=message):
        read_lines(version, None, write_input(tmp_path, content), limits)


def test_token_ids_do_not_count_as_values(tmp_path: Path) -> None:
    path = write_input(tmp_path, [{"prompt": [1] * 10_000}])
    limits = BatchLimits(max_lines=4, max_line_bytes=10**6, max_line_values=10)
    url, lines = read_lines("v2", None, path, limits)
    assert (url, len(lines)) == ("/v1/completions", 1)
