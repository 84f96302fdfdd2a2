"""Structured outputs: every spelling, and one kind at a time."""

import itertools
from typing import Any

import pytest
from support.tables.sampling_jobs import (
    KINDS,
    OBJECTS,
    SPELLINGS,
    every_kind,
    every_place,
    placed,
    refusal,
    sampling,
    spelled,
)


@every_place
@every_kind
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_vllms_own(spelling: str, kind: str, place: str) -> None:
    given = sampling(**placed(place, spelled(spelling, kind, KINDS[kind])))
    assert given.vllm == {"structured_outputs": {kind: KINDS[kind]}}


@every_place
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_whitespace_pattern_goes_with_the_constraint(spelling: str, place: str) -> None:
    extra = spelled(spelling, "whitespace_pattern", "[ ]?")
    given = (
        sampling({"guided_json": {}}, **extra)
        if place == "outside"
        else sampling({"guided_json": {}, **extra})
    )
    assert given.vllm == {"structured_outputs": {"json": {}, "whitespace_pattern": "[ ]?"}}


def test_other_keys_of_vllms_own_object_are_passed_on() -> None:
    own = {"regex": "a", "disable_any_whitespace": True, "no_such_key": 1}
    assert sampling({"structured_outputs": own}).vllm == {"structured_outputs": own}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_empty_object_is_no_constraint(name: str) -> None:
    assert sampling({name: {}}).vllm == {}
    assert sampling({name: {"json": None}, "temperature": 1}).vllm == {"temperature": 1}


@every_place
@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("wrong", ["json", [], True, 7])
def test_the_value_must_be_an_object(name: str, wrong: Any, place: str) -> None:
    error = refusal(**placed(place, {name: wrong}))
    assert error.param == name
    assert error.message == f"sampling_params.{name}: an object"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *itertools.combinations((f"guided_{kind}" for kind in KINDS), 2),
        *itertools.combinations((spelling.format("regex") for spelling in SPELLINGS), 2),
        ("guided_json", "structured_outputs.regex"),
        ("guided_decoding.choice", "structured_outputs.json"),
        ("guided_options_request.guided_grammar", "guided_json_object"),
        ("structured_outputs.structural_tag", "guided_json"),
    ],
)
def test_two_constraints_are_refused_by_both_names(one: str, other: str) -> None:
    params: dict[str, Any] = {}
    for name in (one, other):
        *holder, key = name.split(".")
        into = params.setdefault(holder[0], {}) if holder else params
        into[key] = KINDS.get(key.removeprefix("guided_"), "tag")
    error = refusal(params)
    assert error.status == 400
    assert error.param in (one, other)
    assert {one, other} <= set(error.message.replace(",", "").split())


def test_one_inside_and_another_outside_are_refused_by_both_names() -> None:
    error = refusal({"guided_json": {}}, structured_outputs={"regex": "a"})
    assert "guided_json" in error.message
    assert "structured_outputs.regex" in error.message


@every_place
def test_a_switch_that_is_off_leaves_room_for_another(place: str) -> None:
    params = {"guided_json_object": False, "guided_regex": "a"}
    given = sampling(**placed(place, params))
    assert given.vllm == {"structured_outputs": {"regex": "a"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((f"guided_{kind}", value) for kind, value in KINDS.items()),
        ("guided_whitespace_pattern", " "),
        *((name, {"regex": "a"}) for name in OBJECTS),
        ("return_token_log_probs", True),
    ],
)
def test_the_same_key_inside_and_outside_is_refused(name: str, value: Any) -> None:
    error = refusal({name: value}, **{name: value})
    assert (error.status, error.param) == (400, name)
    assert error.message == f"{name} stands in sampling_params and beside them"


@pytest.mark.parametrize("name", ["temperature", "n", "best_of", "max_tokens", "json"])
def test_other_parameters_stand_in_sampling_params_only(name: str) -> None:
    error = refusal(**{name: 1})
    assert error.param == name
    assert error.message.startswith(f"unknown key {name!r}")


# Dropped by vLLM:


@pytest.mark.parametrize(
    ("params", "name", "instead"),
    [
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend", "STRUCTURED_OUTPUTS_CONFIG"),
        ({"guided_decoding": {"backend": "x"}}, "backend", "STRUCTURED_OUTPUTS_CONFIG"),
        (
            {"guided_options_request": {"guided_decoding_backend": "x"}},
            "guided_decoding_backend",
            "STRUCTURED_OUTPUTS_CONFIG",
        ),
        ({"logits_processors": []}, "logits_processors", "LOGITS_PROCESSORS"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "send a shorter one"),
    ],
)
def test_removed_keys_are_refused_with_what_replaces_them(
    params: dict[str, Any], name: str, instead: str
) -> None:
    error = refusal(params)
    assert (error.status, error.param) == (400, name)
    assert error.message.startswith(f"sampling_params: {name} is gone: ")
    assert instead in error.message


def test_removed_keys_are_refused_outside_sampling_params_too() -> None:
    error = refusal(guided_decoding_backend="xgrammar")
    assert error.param == "guided_decoding_backend"
    assert "STRUCTURED_OUTPUTS_CONFIG" in error.message


@every_place
@pytest.mark.parametrize("kind", ["json", "regex", "choice", "grammar"])
def test_only_a_switch_can_be_off(kind: str, place: str) -> None:
    given = sampling(**placed(place, {f"guided_{kind}": False}))
    assert given.vllm["structured_outputs"] == {kind: False}


@pytest.mark.parametrize("holder", OBJECTS)
def test_a_switch_that_is_off_inside_an_object_leaves_room_for_another(holder: str) -> None:
    given = sampling({holder: {"json_object": False, "regex": "a"}})
    assert given.vllm["structured_outputs"] == {"regex": "a"}


def test_two_values_of_one_thing_are_refused_by_both_names() -> None:
    error = refusal(
        {
            "guided_whitespace_pattern": "a",
            "structured_outputs": {"regex": "x", "whitespace_pattern": "b"},
        }
    )
    assert "guided_whitespace_pattern and structured_outputs.whitespace_pattern" in error.message


@pytest.mark.parametrize("name", ["backend", "guided_backend", "guided_decoding_backend"])
def test_a_requests_backend_is_refused_under_every_name(name: str) -> None:
    error = refusal({"guided_options_request": {name: "x"}})
    assert (error.param, "STRUCTURED_OUTPUTS_CONFIG" in error.message) == (name, True)


def test_null_inside_leaves_room_for_a_value_outside() -> None:
    given = sampling({"guided_regex": None}, guided_regex="a")
    assert given.vllm["structured_outputs"] == {"regex": "a"}
