"""The form of Scale's LLM Engine as a job's input."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import ListJob, RawJob, parse_input

FORM = {"format": "llm_engine"}
DEFAULTS = {"max_tokens": 20, "temperature": 0.2}


def completion(**keys: Any) -> RawJob:
    job = parse_input({**FORM, "prompt": "Hi", **keys})
    assert isinstance(job, RawJob)
    return job


def batch(**keys: Any) -> ListJob:
    job = parse_input({**FORM, **keys})
    assert isinstance(job, ListJob)
    return job


def refusal(**keys: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_input({**FORM, **keys})
    return caught.value


def test_a_prompt_alone_has_the_defaults_of_that_form() -> None:
    job = completion()
    assert (job.prompt, job.conversation, job.stream, job.format) == (
        "Hi",
        None,
        False,
        "llm_engine",
    )
    assert job.sampling_params.vllm == DEFAULTS
    assert (job.sampling_params.n, job.sampling_params.ranked) == (1, False)


def test_without_the_mark_the_form_is_the_workers_own() -> None:
    job = parse_input({"prompt": "Hi", "format": "raw"})
    assert job == parse_input({"prompt": "Hi"})
    assert isinstance(job, RawJob)
    assert job.sampling_params.vllm == {}


@pytest.mark.parametrize(
    ("given", "vllm"),
    [
        ({"max_new_tokens": 7}, {"max_tokens": 7}),
        ({"temperature": 1}, {"temperature": 1}),
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"presence_penalty": 2.0}, {"presence_penalty": 2.0}),
        ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
        ({"top_k": 5}, {"top_k": 5}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"include_stop_str_in_output": False}, {"include_stop_str_in_output": False}),
        ({"skip_special_tokens": True}, {"skip_special_tokens": True}),
        ({"guided_json": {}}, {"structured_outputs": {"json": {}}}),
        ({"guided_regex": "a"}, {"structured_outputs": {"regex": "a"}}),
        ({"guided_choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}),
        ({"guided_grammar": "a"}, {"structured_outputs": {"grammar": "a"}}),
        ({"return_token_log_probs": True}, {"logprobs": 0}),
        ({"return_token_log_probs": False}, {}),
    ],
)
def test_every_parameter_becomes_vllms_own(given: dict[str, Any], vllm: dict[str, Any]) -> None:
    assert completion(**given).sampling_params.vllm == DEFAULTS | vllm


@pytest.mark.parametrize(
    "rest",
    [
        {"timeout": 5, "request_headers": {"a": "b"}},
        {"timeout": "of any type", "request_headers": 7},
        dict.fromkeys(("max_new_tokens", "temperature", "stop_sequences", "top_k", "zzz")),
    ],
    ids=["theirs", "of-any-type", "null"],
)
def test_null_and_keys_of_their_client_alone_change_nothing(rest: dict[str, Any]) -> None:
    assert completion(**rest) == completion()


def test_the_model_the_stream_and_its_chunks_reach_the_job() -> None:
    keys = {"model": "demo", "stream": True, "max_batch_size": 5, "max_batch_delay_ms": 0}
    job = completion(**keys)
    assert {key: getattr(job, key) for key in keys} == keys
    assert job.sampling_params.vllm == DEFAULTS


# Ranges:


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_new_tokens", [1, 10**6]),
        ("temperature", [0, 0.0, 1, 1.0]),
        ("presence_penalty", [0, 2]),
        ("frequency_penalty", [0, 2]),
        ("top_k", [-1, 0, 1]),
        ("top_p", [0.001, 1]),
        ("stop_sequences", [[], ["a"]]),
    ],
)
def test_the_ends_of_a_range_are_in_it(name: str, values: list[Any]) -> None:
    key = {"max_new_tokens": "max_tokens", "stop_sequences": "stop"}.get(name, name)
    assert [completion(**{name: value}).sampling_params.vllm[key] for value in values] == values


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_new_tokens", [0, -1, 1.5, "20", True]),
        ("temperature", [-0.1, 1.1, "0", True, float("nan")]),
        ("presence_penalty", [-0.1, 2.1, "1"]),
        ("frequency_penalty", [-0.1, 2.1, "1"]),
        ("top_k", [-2, 1.5, "1"]),
        ("top_p", [0, 1.1, "1"]),
        ("stop_sequences", ["a", [1]]),
        ("return_token_log_probs", [1, "true"]),
        ("include_stop_str_in_output", [1]),
        ("skip_special_tokens", [1]),
        ("guided_json", ["{}"]),
        ("guided_regex", [["a"]]),
        ("guided_choice", ["a", [1]]),
        ("guided_grammar", [{}]),
        ("stream", [1, "true"]),
        ("model", [7]),
        ("prompt", [7, ["a"]]),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_that_was_written(
    name: str, values: list[Any]
) -> None:
    for value in values:
        error = refusal(**{"prompt": "Hi", name: value})
        assert error.param is not None
        assert error.param.split(".")[0] == name
        assert error.message.startswith(name)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("max_tokens", "max_new_tokens"),
        ("max_new_token", "max_new_tokens"),
        ("stop_sequence", "stop_sequences"),
        ("return_token_logprobs", "return_token_log_probs"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, nearest: str) -> None:
    error = refusal(prompt="Hi", **{key: 1})
    assert error.message == f"unknown key {key!r}: did you mean {nearest!r}?"
    assert error.param == key


@pytest.mark.parametrize("key", ["sampling_params", "messages", "n", "best_of", "logprobs"])
def test_keys_of_the_workers_own_form_are_unknown_there(key: str) -> None:
    assert refusal(prompt="Hi", **{key: 1}).param == key


def test_more_than_one_constraint_is_refused() -> None:
    error = refusal(prompt="Hi", guided_json={}, guided_regex="a")
    assert error.status == 400
    assert error.message == "an answer is held to one of guided_json, guided_regex, not more"


@pytest.mark.parametrize("keys", [{}, {"prompt": "a", "prompts": ["b"]}, {"prompt": None}])
def test_a_prompt_or_prompts_not_both_not_neither(keys: dict[str, Any]) -> None:
    assert "either a prompt or prompts" in refusal(**keys).message


@pytest.mark.parametrize("mark", ["LLM_ENGINE", "openai", 7, ["llm_engine"]])
def test_a_form_of_another_name_is_refused(mark: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input({"format": mark, "prompt": "Hi"})
    assert caught.value.param == "format"


# Batches:


def test_prompts_are_a_list_of_the_same_completions() -> None:
    keys = {"max_new_tokens": 5, "stop_sequences": ["a"], "return_token_log_probs": True}
    job = batch(prompts=["Hi", "Ho"], **keys)
    assert list(job.items) == [completion(**keys), completion(**{**keys, "prompt": "Ho"})]


def test_a_batch_can_be_streamed() -> None:
    assert batch(prompts=["Hi"], stream=True).stream
    assert not batch(prompts=["Hi"]).stream


def test_a_prompt_of_a_wrong_type_fails_in_its_place() -> None:
    good, wrong = batch(prompts=["Hi", 7]).items
    assert good == completion()
    assert isinstance(wrong, InvalidInput)
    assert wrong.param == "prompt"


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"prompts": []}, "prompts"),
        ({"prompts": "Hi"}, "prompts"),
        ({"prompts": ["a"] * 10_001}, "prompts"),
        ({"prompts": ["a"], "temperature": 2}, "temperature"),
        ({"prompts": ["a"], "guided_json": {}, "guided_regex": "a"}, "guided_json"),
    ],
)
def test_a_mistake_in_a_shared_parameter_fails_the_batch(keys: dict[str, Any], param: str) -> None:
    assert refusal(**keys).param == param
