"""The requests of LLM Engine's batches: what is accepted, refused, and without effect."""

from typing import Any

import pytest

from worker.batches.llm_engine.models import BatchRequest, Content
from worker.errors import InvalidInput

# As LLM Engine's client sends it: nulls wherever nothing was given.
SENT: dict[str, Any] = {
    "input_data_path": None,
    "output_data_path": "out.json",
    "labels": {},
    "data_parallelism": 1,
    "max_runtime_sec": 86_400,
    "priority": None,
    "tool_config": None,
    "cpus": None,
    "content": {"prompts": ["Hi"], "max_new_tokens": 3, "temperature": 0.0},
    "model_config": {
        "model": "demo",
        "checkpoint_path": None,
        "trust_remote_code": False,
        "num_shards": 1,
        "labels": {"team": "a"},
    },
}
CONTENT: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}


def read(**keys: Any) -> BatchRequest:
    return BatchRequest.read({**SENT, **keys})


def refusal(**keys: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read(**keys)
    return caught.value


def test_what_the_client_sends_unasked_is_accepted_and_is_nothing() -> None:
    asked = read()
    assert (asked.config.model, asked.without_effect) == ("demo", [])
    assert asked.metadata == {"team": "a"}


def test_a_short_request_has_the_defaults() -> None:
    asked = BatchRequest.read(
        {"model_config": {"model": "demo"}, "output_data_path": "o", "input_data_path": "i"}
    )
    assert (asked.max_runtime_sec, asked.data_parallelism, asked.priority) == (86_400, 1, None)
    assert asked.metadata == {}


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"model_config": {}}, "model_config.model"),
        ({"model_config": {"model": ""}}, "model_config.model"),
        ({"output_data_path": None}, "output_data_path"),
        ({"data_parallelism": 0}, "data_parallelism"),
        ({"data_parallelism": 65}, "data_parallelism"),
        ({"max_runtime_sec": 0}, "max_runtime_sec"),
        ({"max_runtime_sec": 172_801}, "max_runtime_sec"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"labels": {str(number): "" for number in range(17)}}, "labels"),
        ({"labels": {"a" * 65: ""}}, "labels"),
        ({"labels": {"a": "b" * 513}}, "labels"),
        ({"labels": {"a": "\ud800"}}, "labels.a"),
        ({"model_config": {"model": "m", "labels": {"a" * 65: ""}}}, "model_config.labels"),
        ({"labels": {str(number): "" for number in range(16)}}, "labels"),
        ({"priority": 3}, "priority"),
        ({"priority": "a" * 65}, "priority"),
        ({"output_data_path": "./" * 2_048 + "a"}, "output_data_path"),
        ({"priority": "\ud800"}, "priority"),
        ({"content": None}, "content"),
        ({"input_data_path": "in.json"}, "content"),
        ({"outptu": "x"}, "outptu"),
    ],
)
def test_a_refusal_names_the_field(keys: dict[str, Any], param: str) -> None:
    error = refusal(**keys)
    assert error.param == param
    assert param in error.message


def test_the_edges_of_what_is_accepted() -> None:
    asked = read(data_parallelism=64, max_runtime_sec=172_800)
    assert (asked.data_parallelism, asked.max_runtime_sec) == (64, 172_800)


def test_a_misspelt_key_is_told_with_the_right_one() -> None:
    assert "did you mean 'model_config'" in refusal(model_confg={}).message


def test_tools_are_refused_with_the_reason() -> None:
    error = refusal(tool_config={"name": "code_evaluator"})
    assert error.param == "tool_config"
    assert "runs no tools" in error.message


def test_resources_are_accepted_and_told_to_have_no_effect() -> None:
    config = {"model": "demo", "num_shards": 2, "checkpoint_path": "s3://a/b", "revision": None}
    asked = read(gpus=2, cpus="8", labels={"team": "b"}, model_config=config)
    assert asked.metadata == {
        "team": "b",
        "without_effect": "cpus, gpus, model_config.num_shards, model_config.checkpoint_path: "
        "the endpoint's settings decide",
    }


def test_of_what_has_no_effect_the_first_names_are_told_and_short_ones() -> None:
    config = {"model": "m", **{f"{number}{'a' * 10_000}": 1 for number in range(100)}}
    told = read(model_config=config).metadata["without_effect"]
    assert len(told) < 2_000
    assert told.startswith("model_config.0a")


def test_labels_of_the_request_go_before_those_of_the_model() -> None:
    assert read(labels={"team": "b", "x": "y"}).metadata == {"team": "b", "x": "y"}


@pytest.mark.parametrize(
    ("priority", "rank"),
    [(None, None), ("3", 3), (" -2 ", -2), ("high", None), ("1e3", None), ("9" * 40, None)],
)
def test_only_a_number_is_a_priority_for_the_scheduler(
    priority: str | None, rank: int | None
) -> None:
    asked = read(priority=priority)
    assert (asked.priority, asked.rank) == (priority, rank)


@pytest.mark.parametrize(
    "keys",
    [
        {"max_new_tokens": None},
        {"max_new_tokens": 0},
        {"temperature": None},
        {"temperature": 1.1},
        {"temperature": -0.1},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 2.1},
        {"top_k": -2},
        {"top_p": 0},
        {"stop_sequences": "x"},
        {"return_token_log_probs": 1},
        {"skip_special_tokens": "no"},
        {"guided_json": {}},
    ],
)
def test_what_all_prompts_share_is_checked_by_name(keys: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Content.read(CONTENT | keys)
    assert (caught.value.param or "").startswith(f"content.{next(iter(keys))}")


def test_what_all_prompts_share_may_be_null() -> None:
    content = Content.read(CONTENT | {"top_k": None, "stop_sequences": None, "top_p": 1})
    assert (content.top_k, content.stop_sequences, content.top_p) == (None, None, 1)
