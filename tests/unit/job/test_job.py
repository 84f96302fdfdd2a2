"""The shapes a job's input can have."""

from typing import Any

import pytest

from worker.job import OpenAIJob, RawJob, parse_input
from worker.job.sampling import Sampling

CHAT = "/v1/chat/completions"
TURN = {"role": "user", "content": "Hi"}
CHUNK_KEYS = (
    "max_batch_size",
    "min_batch_size",
    "batch_size_growth_factor",
    "max_batch_delay_ms",
)


def openai(payload: Any) -> OpenAIJob:
    job = parse_input(payload)
    assert isinstance(job, OpenAIJob)
    return job


def raw(payload: Any) -> RawJob:
    job = parse_input(payload)
    assert isinstance(job, RawJob)
    return job


# The OpenAI path:


def test_the_gateways_job_says_nothing_of_its_method() -> None:
    job = openai({"openai_route": CHAT, "openai_input": {"messages": []}})
    assert (job.path, job.method, job.body) == ("/chat/completions", None, {"messages": []})


def test_the_route_form_is_the_gateways_spelled_out() -> None:
    body = {"messages": [TURN]}
    assert openai({"route": CHAT, "body": body}) == openai(
        {"openai_route": CHAT, "openai_input": body}
    )


@pytest.mark.parametrize(
    ("method", "body"), [("POST", None), ("POST", {}), ("GET", {"a": 1}), ("GET", None)]
)
def test_a_method_that_is_named_holds_whatever_the_body(method: str, body: Any) -> None:
    assert openai({"route": "/v1/models", "method": method, "body": body}).method == method


@pytest.mark.parametrize("route", ["/v1/models", "v1/models", "/models", "models", "/v1/models/"])
def test_a_route_counts_with_and_without_v1_and_slashes(route: str) -> None:
    assert openai({"openai_route": route}).path == "/models"


@pytest.mark.parametrize("route", ["/v1models", "/v1", "/v2/models"])
def test_only_a_whole_v1_is_left_out_of_a_route(route: str) -> None:
    assert openai({"openai_route": route}).path == route


@pytest.mark.parametrize(
    ("body", "stream"),
    [({"stream": True}, True), ({"stream": False}, False), ({"model": "m"}, False), ({}, False)],
)
def test_a_request_to_vllms_server_streams_if_its_body_says_so(
    body: dict[str, Any], stream: bool
) -> None:
    assert openai({"route": CHAT, "body": body}).stream is stream


@pytest.mark.parametrize("word", [1, "1", "true", "True", "yes", "on"])
def test_a_stream_is_asked_for_in_every_word_that_vllms_server_takes_for_true(word: Any) -> None:
    assert openai({"route": CHAT, "body": {"stream": word}}).stream is True


@pytest.mark.parametrize("word", [0, "false", "no", None, "maybe", 2, [True], {}])
def test_other_words_ask_for_no_stream(word: Any) -> None:
    assert openai({"route": CHAT, "body": {"stream": word}}).stream is False


def test_a_request_without_a_body_never_streams() -> None:
    assert not openai({"route": "/v1/models", "method": "GET"}).stream


def test_the_body_stays_opaque() -> None:
    body = {"messages": 7, "no_such_key": [1], "temperature": None}
    assert openai({"openai_route": CHAT, "openai_input": body}).body == body


# The raw path:


def test_a_prompt_alone_is_a_job_with_the_defaults() -> None:
    given = raw({"prompt": "Hi"}).model_dump()
    assert given.pop("sampling_params") == Sampling().model_dump()
    assert {key: value for key, value in given.items() if value is not None} == {
        "prompt": "Hi",
        "apply_chat_template": False,
        "continue_final_message": False,
        "return_token_ids": False,
        "stream": False,
        "format": "raw",
    }


def test_a_prompt_goes_in_as_it_is() -> None:
    assert raw({"prompt": "Hi"}).conversation is None


def test_a_prompt_is_a_users_turn_where_the_chat_template_is_asked_for() -> None:
    assert raw({"prompt": "Hi", "apply_chat_template": True}).conversation == [TURN]


def test_messages_are_the_conversation() -> None:
    assert raw({"messages": [TURN]}).conversation == [TURN]


@pytest.mark.parametrize("template", [True, False])
def test_messages_win_over_a_prompt(template: bool) -> None:
    payload = {"prompt": "no", "messages": [TURN], "apply_chat_template": template}
    assert raw(payload).conversation == [TURN]


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "ipython", "content": "any role"},
        {"role": "", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "parts"}], "name": "Ann"},
    ],
)
def test_the_chat_template_gets_every_turn_as_it_was_sent(turn: dict[str, Any]) -> None:
    assert raw({"messages": [turn]}).conversation == [turn]


def test_sampling_params_and_stream_reach_the_job() -> None:
    job = raw({"prompt": "Hi", "sampling_params": {"n": 2}, "stream": True})
    assert (job.sampling_params.n, job.stream) == (2, True)


@pytest.mark.parametrize(
    "key", ["messages", "apply_chat_template", "sampling_params", "stream", "nonsense", *CHUNK_KEYS]
)
def test_null_counts_as_absent(key: str) -> None:
    assert raw({"prompt": "Hi", key: None}) == raw({"prompt": "Hi"})


def test_a_null_prompt_leaves_the_messages() -> None:
    assert raw({"prompt": None, "messages": [TURN]}) == raw({"messages": [TURN]})


def test_a_null_route_leaves_the_raw_form() -> None:
    assert raw({"openai_route": None, "prompt": "Hi"}) == raw({"prompt": "Hi"})


def test_parsing_leaves_the_payload_alone() -> None:
    payload = {"openai_route": CHAT, "openai_input": {"n": 1}, "max_batch_size": None}
    before = dict(payload)
    parse_input(payload)
    assert payload == before


# Both:


@pytest.mark.parametrize("form", [{"prompt": "Hi"}, {"openai_route": CHAT}, {"route": CHAT}])
def test_the_four_chunk_keys_are_accepted_in_every_form(form: dict[str, str]) -> None:
    given = dict(zip(CHUNK_KEYS, (5, 1.5, 2, 20.5), strict=True))
    job = parse_input({**form, **given})
    assert {key: getattr(job, key) for key in CHUNK_KEYS} == given


def test_chunk_keys_may_be_zero() -> None:
    job = raw({"prompt": "Hi", **dict.fromkeys(CHUNK_KEYS, 0)})
    assert [getattr(job, key) for key in CHUNK_KEYS] == [0, 0, 0, 0]


def test_a_job_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        raw({"prompt": "Hi"}).prompt = "other"
