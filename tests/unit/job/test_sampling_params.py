"""Sampling parameters: their translation into vLLM's, and their bounds on both paths."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.answers import job_error, run_job
from support.engine.scripted import CHAT, ScriptedEngine, tokens, yields_of

from worker.dialects import parse_input
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.job.sampling_params import PARAMETERS, Sampling
from worker.limits.parameters import (
    BOUNDS,
    GUIDED_KEYS,
    GUIDED_OBJECTS,
    GUIDED_PREFIX,
    MAX_INT32,
    MAX_INT64,
    REMOVED_PARAMETERS,
)

# Constraints of structured output, and the objects that can hold them.
CONSTRAINTS: dict[str, Any] = {"json": {"type": "object"}, "regex": "a+", "choice": ["a", "b"]}
CONSTRAINTS |= {"grammar": 'root ::= "a"', "json_object": True}
HOLDERS = ("structured_outputs", "guided_decoding", "guided_options_request")


def parse_job(params: Any = None, **outside: Any) -> RawJob:
    parsed = parse_input({"prompt": "Hi", "sampling_params": params, **outside})
    assert isinstance(parsed, RawJob)
    return parsed


def parse_sampling(params: Any = None, **outside: Any) -> Sampling:
    return parse_job(params, **outside).sampling_params


@pytest.mark.parametrize(
    ("params", "n", "width", "is_ranked"),
    [
        ({"use_beam_search": False}, 1, 1, False),
        ({"n": 256}, 256, 256, False),
        ({"best_of": 3}, 1, 3, True),
        ({"n": 2, "best_of": 2}, 2, 2, False),
        ({"n": None, "best_of": None}, 1, 1, False),
        ({"use_beam_search": True}, 1, 1, True),
        ({"use_beam_search": True, "n": 2, "best_of": 2}, 2, 2, True),
    ],
    ids=str,
)
def test_best_of_choices_are_generated_and_ranked_choices_are_not_streamed(
    params: dict[str, Any], n: int, width: int, is_ranked: bool
) -> None:
    parsed = parse_sampling(params)
    assert (parsed.n, parsed.num_candidates, parsed.is_ranked) == (n, width, is_ranked)
    assert parse_job(params, stream=True).is_streamed is not is_ranked
    assert parse_job(params, stream=False).is_streamed is False


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"guided_decoding": 5}, "guided_decoding: an object"),
        (
            {"guided_json": {}, "guided_regex": ""},
            "an answer can be constrained by one of guided_json",
        ),
        ({"backend": "x"}, "backend is gone: "),
    ],
)
def test_an_error_for_a_parameter_of_a_body_has_no_prefix(params: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Sampling.from_params(params, "")
    assert caught.value.message.startswith(message)
    assert caught.value.param in params


def test_other_parameters_are_passed_to_vllm_unchanged() -> None:
    other_params = {
        "temperature": 0.5,
        "stop": ["a"],
        "no_such_parameter": {"a": [None]},
        "logprobs": "x",
    }
    translated: dict[str, Any] = {
        "n": 2,
        "best_of": 3,
        "use_beam_search": True,
        "length_penalty": 0.5,
    }
    translated |= {"early_stopping": "never", "return_token_log_probs": False}
    # The defaults of beam search may be sent explicitly.
    assert parse_sampling({"length_penalty": 1, "early_stopping": False}) == parse_sampling()
    parsed = parse_sampling({**other_params, **translated})
    assert parsed.vllm_params == other_params
    assert {name: getattr(parsed, name) for name in translated} == translated


def test_null_counts_as_absent_inside_and_outside_of_sampling_params() -> None:
    names = (*Sampling.model_fields, "temperature", "logits_processors", "guided_json", HOLDERS[0])
    nulls = dict.fromkeys(names)
    assert parse_sampling(nulls) == parse_sampling(**nulls) == parse_sampling()
    assert parse_sampling({"guided_regex": None}, guided_regex="a") == parse_sampling(
        guided_regex="a"
    )


# Parameters of raw jobs that fit together.
TOGETHER: dict[str, Any] = {"n": 2, "best_of": 3, "return_token_log_probs": True} | {
    name: name
    for name in PARAMETERS - Sampling.model_fields.keys() - GUIDED_KEYS - GUIDED_OBJECTS
    if name.removeprefix(GUIDED_PREFIX) not in REMOVED_PARAMETERS
}


@given(
    st.fixed_dictionaries({}, optional={name: st.just(TOGETHER[name]) for name in TOGETHER}),
    st.sets(st.sampled_from(sorted(TOGETHER))),
    st.sets(st.sampled_from(sorted(TOGETHER))),
)
def test_a_parameter_means_the_same_inside_and_outside_of_sampling_params(
    params: dict[str, Any], moved: set[str], repeated: set[str]
) -> None:
    inside = {name: value for name, value in params.items() if name not in moved}
    outside = {name: params[name] for name in params.keys() & moved}
    if not inside.keys() & repeated:
        assert parse_sampling(inside, **outside) == parse_sampling(params)
        return
    outside |= {name: inside[name] for name in inside.keys() & repeated}
    with pytest.raises(InvalidInput, match="is set both in sampling_params and next to it") as two:
        parse_sampling(inside, **outside)
    assert two.value.param in inside.keys() & outside.keys()


def test_return_token_log_probs_becomes_logprobs() -> None:
    keys = {"return_token_log_probs": True}
    for logprobs, expected in ((5, 5), (None, 0)):
        params = {"logprobs": logprobs}
        assert parse_sampling({**params, **keys}).vllm_params == {"logprobs": expected}
        assert parse_sampling(params, **keys).vllm_params == {"logprobs": expected}


# Structured outputs, in sampling_params or next to them:


def spellings_of(kind: str, value: Any) -> list[dict[str, Any]]:
    """Return a constraint in every spelling."""
    names = (kind, f"guided_{kind}")
    return [{names[1]: value}, *({holder: {name: value}} for holder in HOLDERS for name in names)]


def test_every_spelling_is_translated_into_vllms() -> None:
    for kind, value in CONSTRAINTS.items():
        for params in spellings_of(kind, value):
            vllm = {"structured_outputs": {kind: value}}
            assert (
                parse_sampling(params).vllm_params == parse_sampling(**params).vllm_params == vllm
            )
    # A whitespace pattern needs another constraint.
    vllm = {"structured_outputs": {"json": {}, "whitespace_pattern": "[ ]?"}}
    for params in spellings_of("whitespace_pattern", "[ ]?"):
        assert parse_sampling({"guided_json": {}, **params}).vllm_params == vllm
        assert parse_sampling({"guided_json": {}}, **params).vllm_params == vllm


@pytest.mark.parametrize(
    ("params", "structured"),
    [
        # Other keys of vLLM's own object are passed on.
        ({"structured_outputs": {"regex": "a", "other": 1}}, {"regex": "a", "other": 1}),
        # json_object=False allows another constraint; no other constraint can be switched off.
        ({"guided_json_object": False, "guided_regex": "a"}, {"regex": "a"}),
        *(({holder: {"json_object": False, "regex": "a"}}, {"regex": "a"}) for holder in HOLDERS),
        ({"guided_json": False}, {"json": False}),
        # Empty objects and nulls constrain nothing.
        *(({holder: {"json": None}, "guided_regex": "a"}, {"regex": "a"}) for holder in HOLDERS),
        *(({holder: {}}, None) for holder in HOLDERS),
    ],
    ids=str,
)
def test_a_constraint_is_translated_into_vllms(params: Any, structured: Any) -> None:
    vllm = {"structured_outputs": structured} if structured else {}
    assert parse_sampling(params).vllm_params == parse_sampling(**params).vllm_params == vllm


def test_a_constraint_may_be_sent_in_the_current_spelling_and_in_the_former_one() -> None:
    for kind, value in CONSTRAINTS.items():
        vllm = {"structured_outputs": {kind: value}}
        for former in spellings_of(kind, value):
            both = {**former, **vllm, "guided_decoding_backend": "guidance"}
            assert parse_sampling(both).vllm_params == parse_sampling(**both).vllm_params == vllm
    with pytest.raises(InvalidInput, match=r"guided_regex and structured_outputs\.regex set"):
        parse_sampling({"guided_regex": "a", "structured_outputs": {"regex": "b"}})


# Bounds, on both paths:


def number_strings(count: int) -> list[str]:
    return [str(number) for number in range(count)]


AT_BOUNDS: dict[str, Any] = {
    **{
        "min_tokens": MAX_INT32,
        "max_tokens": MAX_INT32,
        "seed": -MAX_INT64 - 1,
        "repetition_penalty": 10,
    },
    **{"presence_penalty": -2, "frequency_penalty": 2, "stop": ["a" * 4_096, *number_strings(63)]},
    **{"bad_words": number_strings(64), "stop_token_ids": list(range(64))},
    "allowed_token_ids": list(range(1_024)),
    "logit_bias": dict.fromkeys(number_strings(1_024), -100),
    "repetition_detection": {"max_pattern_size": 256, "min_count": 2},
}
TO_INT32 = f"from {-MAX_INT32:,} to {MAX_INT32:,}"
TO_INT64 = f"from {-MAX_INT64 - 1:,} to {MAX_INT64:,}"
ABOVE_BOUNDS: list[tuple[str, Any, str]] = [
    ("thinking_token_budget", MAX_INT32 + 1, TO_INT32),
    ("seed", MAX_INT64 + 1, TO_INT64),
    ("stop", "a" * 4_097, "one has 4,097 characters, at most 4,096"),
    ("stop", ["a" * 4_097], "one has 4,097 characters, at most 4,096"),
    ("stop", number_strings(65), "65 of them, at most 64"),
    ("bad_words", number_strings(65), "65 of them, at most 64"),
    ("stop_token_ids", list(range(65)), "65 of them, at most 64"),
    ("allowed_token_ids", list(range(1_025)), "1,025 of them, at most 1,024"),
    ("logprob_token_ids", list(range(129)), "129 of them, at most 128"),
    ("logit_bias", dict.fromkeys(number_strings(1_025), 1), "1,025 of them, at most 1,024"),
    ("logit_bias", {"5": 1e300}, "from -100 to 100"),
    ("repetition_penalty", 10.5, "above 0 to 10"),
    ("repetition_penalty", 0, "above 0 to 10"),
    ("repetition_detection", {"max_pattern_size": 257}, "max_pattern_size: from 0 to 256"),
]
# Bodies for vLLM's server may have numbers as strings, and other names of parameters.
ABOVE_IN_BODIES: list[tuple[str, Any, str]] = [
    ("stop_sequences", ["a" * 4_097], "one has 4,097 characters, at most 4,096"),
    ("top_k", MAX_INT32 + 1, TO_INT32),
    ("repetition_penalty", "1e300", "above 0 to 10"),
    ("seed", str(MAX_INT64 + 1), TO_INT64),
    ("logit_bias", {"5": "nan"}, "from -100 to 100"),
]


def raw(**params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "sampling_params": params}


def body(**params: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": "Hi", **params}}


async def test_values_at_their_bounds_are_accepted_on_both_paths() -> None:
    # Together with these log probabilities, the answer would be too large.
    for params in (AT_BOUNDS, {"logprob_token_ids": list(range(128))}):
        for payload in (raw(**params), body(**params)):
            assert "error" not in (await run_job(payload, *tokens("a")))[-1]


@pytest.mark.parametrize(("name", "value", "message"), ABOVE_BOUNDS)
async def test_raw_jobs_above_a_bound_are_refused(name: str, value: Any, message: str) -> None:
    error = await job_error(raw(**{name: value}))
    assert (error["code"], error["param"]) == (400, name)
    assert error["message"] == f"sampling_params.{name}: {message}"


@pytest.mark.parametrize(("name", "value", "message"), [ABOVE_BOUNDS[0], *ABOVE_IN_BODIES])
async def test_bodies_above_a_bound_are_refused(name: str, value: Any, message: str) -> None:
    error = await job_error(body(**{name: value}))
    assert (error["code"], error["param"]) == (400, name)
    assert error["message"] == f"{name}: {message}"


async def test_repeated_items_count_once() -> None:
    params = {"allowed_token_ids": [5, 6] * 5_000, "bad_words": ["a", "b"] * 400}
    once = {"allowed_token_ids": [5, 6], "bad_words": ["a", "b"]}
    assert RawJob.from_input(raw(**params)).sampling_params.vllm_params == once
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, body(**params))
    (request,) = engine.requests
    assert isinstance(request, dict)
    assert {name: request[name] for name in once} == once
    # max_tokens is cut to the largest number that the engine can count.
    assert RawJob.from_input(raw(max_tokens=MAX_INT64)).sampling_params.vllm_params == {
        "max_tokens": MAX_INT32
    }


def test_values_of_wrong_types_are_left_to_vllm() -> None:
    values: list[Any] = [None, True, {}, [], "five", [{}], {"a": {}}, [[1]]]
    pairs = [(bound, value) for bound in BOUNDS.values() for value in values]
    assert [pair for pair in pairs if pair[0].violation_message(pair[1])] == []
