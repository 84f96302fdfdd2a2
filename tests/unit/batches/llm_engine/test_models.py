"""The requests of LLM Engine's batches: what is accepted, refused, and without effect."""

from typing import Any

import pytest

from worker.batches.llm_engine.models import BatchRequest, Content
from worker.errors import InvalidInput

# As LLM Engine's client sends it: nulls wherever nothing was given.
SENT: dict[str, Any] = {
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
    values = {"model_config": {"model": "m"}, "output_data_path": "o", "input_data_path": "i"}
    asked = BatchRequest.read(values)
    assert (asked.max_runtime_sec, asked.data_parallelism, asked.priority) == (86_400, 1, None)
    assert asked.metadata == {}


def many(count: int) -> dict[str, str]:
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
        *(("labels", {"labels": it}) for it in (many(17), {"a" * 65: ""}, {"a": "b" * 513})),
        # With that of the model.
        ("labels", {"labels": many(16)}),
        *(("priority", {"priority": value}) for value in (3, "a" * 65, "\ud800")),
        *(("content", keys) for keys in ({"content": None}, {"input_data_path": "in.json"})),
        ("outptu", {"outptu": "x"}),
    ],
)
def test_a_refusal_names_the_field(param: str, keys: dict[str, Any]) -> None:
    error = refusal(**keys)
    assert error.param == param
    assert param in error.message


def test_the_edges_of_what_is_accepted() -> None:
    asked = read(data_parallelism=64, max_runtime_sec=172_800)
    assert (asked.data_parallelism, asked.max_runtime_sec) == (64, 172_800)


def test_a_misspelt_key_is_refused_with_the_right_one_and_tools_with_the_reason() -> None:
    assert "did you mean 'model_config'" in refusal(model_confg={}).message
    error = refusal(tool_config={"name": "code_evaluator"})
    assert (error.param, "runs no tools" in error.message) == ("tool_config", True)


def test_resources_are_accepted_and_said_to_have_no_effect() -> None:
    config = {"model": "demo", "num_shards": 2, "checkpoint_path": "s3://a/b", "revision": None}
    asked = read(gpus=2, cpus="8", labels={"team": "b"}, model_config=config)
    names = "cpus, gpus, model_config.num_shards, model_config.checkpoint_path"
    without_effect = f"{names}: the endpoint's settings decide"
    assert asked.metadata == {"team": "b", "without_effect": without_effect}


def test_of_what_has_no_effect_the_first_names_are_told_and_short_ones() -> None:
    config = {"model": "m", **{f"{number}{'a' * 10_000}": 1 for number in range(100)}}
    names = read(model_config=config).metadata["without_effect"]
    assert len(names) < 2_000
    assert names.startswith("model_config.0a")


def test_labels_of_the_request_go_before_those_of_the_model() -> None:
    assert read(labels={"team": "b", "x": "y"}).metadata == {"team": "b", "x": "y"}


@pytest.mark.parametrize(
    ("priority", "rank"),
    [(None, None), ("3", 3), (" -2 ", -2), ("high", None), ("1e3", None), ("9" * 40, None)],
)
def test_only_a_number_is_a_schedulers_priority(priority: str | None, rank: int | None) -> None:
    asked = read(priority=priority)
    assert (asked.priority, asked.rank) == (priority, rank)


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
def test_what_all_prompts_share_is_checked_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Content.read({**CONTENT, name: value})
    assert (caught.value.param or "").startswith(f"content.{name}")


def test_what_all_prompts_share_may_be_null() -> None:
    content = Content.read(CONTENT | {"top_k": None, "stop_sequences": None, "top_p": 1})
    assert (content.top_k, content.stop_sequences, content.top_p) == (None, None, 1)
