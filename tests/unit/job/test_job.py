"""The shapes that a job's input can have, what is read from them, and what is refused."""

from typing import Any

import pytest
from support.tables import refused_jobs, refused_work
from support.tables.refused_jobs import RAW

from worker.dialects import ACCEPTED_INPUTS, parse_input
from worker.errors import InvalidInput
from worker.job import SHAPES, FineTuneJob, OpenAIJob, RawJob

CHAT = "/v1/chat/completions"
TURN = {"role": "user", "content": "Hi"}
CHUNK_KEYS = ("max_batch_size", "min_batch_size", "batch_size_growth_factor", "max_batch_delay_ms")


def openai(**keys: Any) -> OpenAIJob:
    job = parse_input(keys)
    assert isinstance(job, OpenAIJob)
    return job


def raw(**keys: Any) -> RawJob:
    job = parse_input(keys)
    assert isinstance(job, RawJob)
    return job


# The OpenAI path:


def test_the_gateways_job_says_nothing_of_its_method_and_its_body_stays_opaque() -> None:
    body = {"messages": 7, "no_such_key": [1], "temperature": None}
    job = openai(openai_route=CHAT, openai_input=body)
    assert (job.path, job.method, job.body) == ("/chat/completions", None, body)


def test_the_route_form_is_the_gateways_spelled_out() -> None:
    body = {"messages": [TURN]}
    assert openai(route=CHAT, body=body) == openai(openai_route=CHAT, openai_input=body)
    assert openai(route="/v1/models", method="GET", body=body).method == "GET"


def test_a_route_counts_with_and_without_v1_and_slashes() -> None:
    for route in ("/v1/models", "v1/models", "/models", "models/"):
        assert openai(openai_route=route).path == "/models"
    # Only a whole v1 is left out.
    for route in ("/v1models", "/v1", "/v2/models"):
        assert openai(openai_route=route).path == route


def test_a_stream_is_asked_for_in_every_word_that_is_true() -> None:
    true: list[Any] = [True, 1, "1", "true", "True", "yes", "on"]
    words = [*true, False, 0, "false", "no", None, "maybe", 2, [True], {}]
    assert [word for word in words if openai(route=CHAT, body={"stream": word}).stream] == true
    assert not openai(route=CHAT).stream


# The raw path:


@pytest.mark.parametrize(
    ("keys", "conversation"),
    [
        ({"prompt": "Hi"}, None),
        ({"prompt": "Hi", "apply_chat_template": True}, [TURN]),
        ({"prompt": "no", "messages": [TURN], "apply_chat_template": True}, [TURN]),
    ],
)
def test_messages_win_over_a_prompt(keys: dict[str, Any], conversation: Any) -> None:
    assert raw(**keys).conversation == conversation


def test_the_chat_template_gets_every_turn_as_it_was_sent() -> None:
    turns = [
        {"role": "ipython", "content": "any role"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "parts"}], "name": "Ann"},
    ]
    assert raw(messages=turns).conversation == turns


def test_null_counts_as_absent() -> None:
    keys = ("openai_route", "messages", "sampling_params", "stream", "guided_json", "zzz")
    assert raw(prompt="Hi", **dict.fromkeys((*keys, *CHUNK_KEYS))) == raw(prompt="Hi")


def test_the_four_chunk_keys_are_accepted_in_every_form() -> None:
    for form in ({"prompt": "Hi"}, {"openai_route": CHAT}):
        for sizes in ((5, 1.5, 2, 20.5), (0, 0, 0, 0)):
            job = parse_input({**form, **dict(zip(CHUNK_KEYS, sizes, strict=True))})
            assert tuple(getattr(job, key) for key in CHUNK_KEYS) == sizes


@pytest.mark.parametrize(
    "payload",
    [
        {"openai_route": CHAT, "openai_input": {"n": 1, "stop": None}, "max_batch_size": None},
        {"prompts": ["a", "b"], "sampling_params": [{}, None], "guided_regex": "a"},
        {"messages_list": [[TURN], [TURN]], "sampling_params": {"n": None}, "stream": True},
    ],
)
def test_parsing_leaves_the_payload_alone(payload: dict[str, Any]) -> None:
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


# Refusals: the message and the parameter of each, and no value in them.


@pytest.mark.parametrize(
    ("param", "message", "payload"),
    [
        pytest.param(*case, id=ascii(case[1])[1:60])
        for case in (*refused_jobs.refused(), *refused_work.refused())
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_would_be_right(
    param: str | None, message: str, payload: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input(payload)
    assert (caught.value.message, caught.value.param) == (message, param)


def test_a_message_names_no_more_than_the_first_mistakes() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input({**RAW, **{f"zzz{number}": 1 for number in range(99)}})
    assert caught.value.message.count("unknown key") == 5


def test_the_accepted_inputs_show_every_shape() -> None:
    assert all(any(f'"{mark}"' in ACCEPTED_INPUTS for mark in shape.marks) for shape in SHAPES)
