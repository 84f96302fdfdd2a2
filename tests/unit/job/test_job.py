"""The shapes of a job's input: the values that are read from them, and refusals."""

from typing import Any

import pytest
from support.tables import refused_jobs, refused_work
from support.tables.refused_jobs import RAW

from worker.dialects import ACCEPTED_INPUTS, parse_input
from worker.errors import InvalidInput
from worker.job import JOB_TYPES, FineTuneJob, OpenAIJob, RawJob

CHAT = "/v1/chat/completions"
TURN = {"role": "user", "content": "Hi"}
CHUNK_KEYS = ("max_batch_size", "min_batch_size", "batch_size_growth_factor", "max_batch_delay_ms")


def parse_openai(**keys: Any) -> OpenAIJob:
    job = parse_input(keys)
    assert isinstance(job, OpenAIJob)
    return job


def parse_raw(**keys: Any) -> RawJob:
    job = parse_input(keys)
    assert isinstance(job, RawJob)
    return job


# The OpenAI path:


def test_a_job_of_the_gateway_has_no_method_and_an_unchecked_body() -> None:
    body = {"messages": 7, "no_such_key": [1], "temperature": None}
    job = parse_openai(openai_route=CHAT, openai_input=body)
    assert (job.path, job.method, job.body) == ("/chat/completions", None, body)


def test_route_and_body_equal_the_keys_of_the_gateway() -> None:
    body = {"messages": [TURN]}
    assert parse_openai(route=CHAT, body=body) == parse_openai(openai_route=CHAT, openai_input=body)
    assert parse_openai(route="/v1/models", method="GET", body=body).method == "GET"


def test_a_route_is_the_same_with_and_without_v1_and_slashes() -> None:
    for route in ("/v1/models", "v1/models", "/models", "models/"):
        assert parse_openai(openai_route=route).path == "/models"
    # Only a whole path segment v1 is removed.
    for route in ("/v1models", "/v1", "/v2/models"):
        assert parse_openai(openai_route=route).path == route


def test_every_true_value_requests_a_stream() -> None:
    true_values: list[Any] = [True, 1, "1", "true", "True", "yes", "on"]
    values = [*true_values, False, 0, "false", "no", None, "maybe", 2, [True], {}]
    assert [
        value for value in values if parse_openai(route=CHAT, body={"stream": value}).stream
    ] == true_values
    assert not parse_openai(route=CHAT).stream


# The raw path:


@pytest.mark.parametrize(
    ("keys", "conversation"),
    [
        ({"prompt": "Hi"}, None),
        ({"prompt": "Hi", "apply_chat_template": True}, [TURN]),
        ({"prompt": "no", "messages": [TURN], "apply_chat_template": True}, [TURN]),
    ],
)
def test_messages_override_a_prompt(keys: dict[str, Any], conversation: Any) -> None:
    assert parse_raw(**keys).chat_messages == conversation


def test_the_chat_template_gets_every_turn_unchanged() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "ipython", "content": "any role"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "parts"}], "name": "Ann"},
    ]
    assert parse_raw(messages=turns).chat_messages == turns


def test_null_counts_as_absent() -> None:
    keys = ("openai_route", "messages", "sampling_params", "stream", "guided_json", "zzz")
    assert parse_raw(prompt="Hi", **dict.fromkeys((*keys, *CHUNK_KEYS))) == parse_raw(prompt="Hi")


def test_the_four_chunk_keys_are_accepted_in_every_form() -> None:
    for form in ({"prompt": "Hi"}, {"openai_route": CHAT}):
        for sizes in ((5, 1.5, 2, 20.5), (0, 0, 0, 0)):
            job = parse_input({**form, **dict(zip(CHUNK_KEYS, sizes, strict=True))})
            assert tuple(getattr(job, key) for key in CHUNK_KEYS) == sizes


USER = "ü" * 512
FORMS: list[dict[str, Any]] = [
    {"prompt": "Hi"},
    {"prompts": ["Hi"]},
    {"route": CHAT},
    {"batch": {"id": "batch_1"}},
    {"fine_tune": {"id": "ftjob-1"}},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_a_name_of_a_user_has_a_limited_length_in_every_form(form: dict[str, Any]) -> None:
    assert parse_input({**form, "user": USER}).receipt_names == (USER, {})
    for longer in (USER + "a", "a" * 1_000_000):
        with pytest.raises(InvalidInput, match=r"^user: String should have at most 512 char"):
            parse_input({**form, "user": longer})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"user": USER, "metadata": {"a": "b"}}, (USER, {"a": "b"})),
        ({"metadata": {"user_id": USER, "a": "b"}}, (USER, {"a": "b"})),
        # vLLM's server accepts these, so that they only miss in the receipt.
        ({"user": USER + "a", "metadata": {"a": "b"}}, (None, {"a": "b"})),
        ({"metadata": {"user_id": USER + "a", "a": "b"}}, (None, {"a": "b"})),
        ({"user": "a", "metadata": {"a": "b" * 513}}, ("a", {})),
        ({"user": "a", "metadata": {str(n): "" for n in range(17)}}, ("a", {})),
        ({"user": ["a"], "metadata": "b"}, (None, {})),
        ({"user": "\ud83d"}, (None, {})),
    ],
)
def test_names_in_a_body_that_are_too_long_are_ignored_and_the_others_are_not(
    names: dict[str, Any], expected: tuple[str | None, dict[str, str]]
) -> None:
    assert parse_openai(route=CHAT, body=names).receipt_names == expected


@pytest.mark.parametrize(
    "payload",
    [
        {"openai_route": CHAT, "openai_input": {"n": 1, "stop": None}, "max_batch_size": None},
        {"prompts": ["a", "b"], "sampling_params": [{}, None], "guided_regex": "a"},
        {"messages_list": [[TURN], [TURN]], "sampling_params": {"n": None}, "stream": True},
    ],
)
def test_parsing_does_not_change_the_payload(payload: dict[str, Any]) -> None:
    before = repr(payload)
    parse_input(payload)
    assert repr(payload) == before


# Fine-tunes:


@pytest.mark.parametrize(
    "spec",
    [
        {"id": "ftjob-a", "max_runtime_sec": 60, "training_file": None, "suffix": None},
        {"training_file": "file-a"},
        {"training_path": "rows.csv", "model": "demo"},
        {"rows": [{"prompt": "a", "response": "b"}], "hyperparameters": {"epochs": 1}},
    ],
)
def test_a_fine_tune_has_one_source(spec: dict[str, Any]) -> None:
    job = parse_input({"fine_tune": spec})
    assert isinstance(job, FineTuneJob)
    assert {name: getattr(job.fine_tune, name) for name in spec} == spec


# Refusals: each has a message and a parameter, and no value of the input.


@pytest.mark.parametrize(
    ("param", "message", "payload"),
    [
        pytest.param(*case, id=ascii(case[1])[1:60])
        for case in (*refused_jobs.refused_cases(), *refused_work.refused_cases())
    ],
)
def test_a_refusal_names_the_mistake_and_the_correction(
    param: str | None, message: str, payload: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input(payload)
    assert (caught.value.message, caught.value.param) == (message, param)


def test_a_message_names_only_the_first_mistakes() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input({**RAW, **{f"zzz{number}": 1 for number in range(99)}})
    assert caught.value.message.count("unknown key") == 5


def test_the_accepted_inputs_contain_every_shape() -> None:
    assert all(
        any(f'"{mark}"' in ACCEPTED_INPUTS for mark in shape.marker_keys) for shape in JOB_TYPES
    )
