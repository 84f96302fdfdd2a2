"""Inputs that are refused, and the messages."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import ACCEPTED_INPUTS, parse_input

CHAT = "/v1/chat/completions"
TURN = {"role": "user", "content": "Hi"}


def refusal(payload: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_input(payload)
    return caught.value


@pytest.mark.parametrize(
    "payload", [{}, None, [], ["prompt"], "prompt", 7, {"prompt": None}, {"promt": "Hi"}]
)
def test_an_input_of_no_known_shape_is_refused_with_the_accepted_ones(payload: Any) -> None:
    error = refusal(payload)
    assert ACCEPTED_INPUTS in error.message
    assert error.param is None


def test_the_accepted_shapes_show_every_form() -> None:
    for key in ('"prompt"', '"messages"', '"openai_route"', '"openai_input"', '"route"'):
        assert key in ACCEPTED_INPUTS


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"prompt": "Hi", "strem": True}, "unknown key 'strem': did you mean 'stream'?"),
        (
            {"prompt": "Hi", "sampling_param": {}},
            "unknown key 'sampling_param': did you mean 'sampling_params'?",
        ),
        ({"prompt": "Hi", "zzz": 1}, "unknown key 'zzz'"),
        ({"route": CHAT, "methd": "GET"}, "unknown key 'methd': did you mean 'method'?"),
        ({"openai_route": CHAT, "prompt": "Hi"}, "unknown key 'prompt'"),
        (
            {"openai_route": CHAT, "openai_inptu": {}},
            "unknown key 'openai_inptu': did you mean 'openai_input'?",
        ),
    ],
)
def test_an_unknown_key_is_refused_by_name_with_the_nearest_known_one(
    payload: dict[str, Any], message: str
) -> None:
    error = refusal(payload)
    assert error.message == message
    assert error.param is not None
    assert repr(error.param) in message


OPENAI_FORM = '{"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}'


@pytest.mark.parametrize(
    "form",
    [{"prompt": "Hi"}, {"messages": [TURN]}, {"prompts": ["Hi"]}, {"messages_list": [[TURN]]}],
)
@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        (
            "max_tokens",
            'it belongs into sampling_params: {"sampling_params": {"max_tokens": ...}}',
        ),
        (
            "best_of",
            'it belongs into sampling_params: {"sampling_params": {"best_of": ...}}',
        ),
        (
            "max_new_tokens",
            "did you mean 'max_tokens'? "
            'it belongs into sampling_params: {"sampling_params": {"max_tokens": ...}}',
        ),
        ("priority", "requests of the OpenAI API have it, if SCHEDULING_POLICY=priority"),
        (
            "response_format",
            'a schema is {"sampling_params": {"structured_outputs": {"json": {...}}}}',
        ),
        ("use_openai_format", f"answers of the OpenAI API come from {OPENAI_FORM}"),
    ],
)
def test_a_key_that_belongs_elsewhere_is_refused_with_its_place(
    form: dict[str, Any], key: str, remedy: str
) -> None:
    error = refusal({**form, key: 5})
    assert error.message == f"unknown key {key!r}: {remedy}"
    assert error.param == key


def test_all_mistakes_are_named_and_the_first_is_the_param() -> None:
    error = refusal({"prompt": 5, "stream": "yes", "zzz": 1})
    assert error.message == (
        "prompt: a text, or a list of token ids; prompts takes a list of prompts; "
        "stream: Input should be a valid boolean; "
        "unknown key 'zzz'"
    )
    assert error.param == "prompt"


SECRET = "my secret prompt"


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"prompt": [SECRET]}, "prompt"),
        ({"messages": SECRET}, "messages"),
        ({"messages": [SECRET]}, "messages.0"),
        ({"messages": [TURN, {"role": 5, "content": SECRET}]}, "messages.1.role"),
        ({"messages": [{"content": SECRET}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [SECRET]}]}, "messages.0.content"),
        ({"prompt": "Hi", "apply_chat_template": SECRET}, "apply_chat_template"),
        ({"prompt": "Hi", "sampling_params": [SECRET]}, "sampling_params"),
        ({"prompt": "Hi", "stream": SECRET}, "stream"),
        ({"prompt": "Hi", "stream": 1}, "stream"),
        ({"prompt": "Hi", "max_batch_size": SECRET}, "max_batch_size"),
        ({"prompt": "Hi", "max_batch_size": "5"}, "max_batch_size"),
        ({"prompt": "Hi", "max_batch_size": 1.5}, "max_batch_size"),
        ({"prompt": "Hi", "max_batch_size": True}, "max_batch_size"),
        ({"prompt": "Hi", "max_batch_size": -1}, "max_batch_size"),
        ({"prompt": "Hi", "min_batch_size": -0.5}, "min_batch_size"),
        ({"prompt": "Hi", "min_batch_size": float("nan")}, "min_batch_size"),
        ({"prompt": "Hi", "batch_size_growth_factor": float("inf")}, "batch_size_growth_factor"),
        ({"prompt": "Hi", "max_batch_delay_ms": -1}, "max_batch_delay_ms"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": [SECRET]}]}]},
            "messages.0.content",
        ),
        ({"route": [SECRET]}, "route"),
        ({"openai_route": [SECRET]}, "openai_route"),
        ({"openai_route": CHAT, "openai_input": [SECRET]}, "openai_input"),
        ({"route": CHAT, "body": SECRET}, "body"),
        ({"route": CHAT, "method": [SECRET]}, "method"),
    ],
)
def test_a_wrong_value_is_refused_naming_its_field_and_never_echoed(
    payload: dict[str, Any], field: str
) -> None:
    error = refusal(payload)
    assert error.message.startswith(field)
    assert error.param is not None
    assert error.param.startswith(field)
    assert SECRET not in error.message


def test_empty_messages_are_refused() -> None:
    assert refusal({"messages": []}).message.startswith("messages: ")


def test_a_message_names_no_more_than_the_first_mistakes() -> None:
    error = refusal({"prompt": "Hi", **{f"zzz{number}": 1 for number in range(99)}})
    assert error.message.count("unknown key") == 5


@pytest.mark.parametrize("form", [{"prompt": "Hi"}, {"route": CHAT}])
def test_half_a_surrogate_pair_in_a_key_is_refused(form: dict[str, Any]) -> None:
    error = refusal({**form, "\ud83d": 1})
    assert error.message.startswith("input: Input should be a valid string")
    assert error.param == "input"


def test_a_long_key_is_named_by_its_beginning() -> None:
    message = refusal({"prompt": "Hi", "z" * 200: 1}).message
    assert message == f"unknown key {'z' * 64!r}..."


@pytest.mark.parametrize(
    "payload",
    [
        {"messages": [0] * 9_999},
        {"messages": [{}] * 9_999},
        {"messages": [{"role": "user", "content": [0] * 9_999}]},
        {"prompt": "Hi", "tools": [0] * 99},
        {"format": "llm_engine", "prompt": "Hi", "stop_sequences": [0] * 9_999},
    ],
    ids=["numbers", "objects", "parts", "tools", "texts"],
)
def test_of_a_list_of_mistakes_the_first_is_told(payload: dict[str, Any]) -> None:
    # A list of complaints as long as the list would take seconds, and gigabytes.
    field = refusal(payload).param or ""
    assert field.split(".").count("0") == field.count("0") == 1 or ".0.0" in field
