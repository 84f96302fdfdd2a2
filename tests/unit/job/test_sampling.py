"""Sampling parameters that vLLM does not have by that name: read, and translated."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import RawJob, parse_input
from worker.job.sampling import Sampling

# Constraints of structured output, and the objects that can hold them.
KINDS: dict[str, Any] = {
    "json": {"type": "object"},
    "regex": "a+",
    "choice": ["a", "b"],
    "grammar": 'root ::= "a"',
    "json_object": True,
}
HOLDERS = ("structured_outputs", "guided_decoding", "guided_options_request")


def job(params: Any = None, **outside: Any) -> RawJob:
    parsed = parse_input({"prompt": "Hi", "sampling_params": params, **outside})
    assert isinstance(parsed, RawJob)
    return parsed


def sampling(params: Any = None, **outside: Any) -> Sampling:
    return job(params, **outside).sampling_params


@pytest.mark.parametrize(
    ("params", "n", "width", "ranked"),
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
def test_best_of_are_generated_and_what_is_compared_first_is_not_streamed(
    params: dict[str, Any], n: int, width: int, ranked: bool
) -> None:
    found = sampling(params)
    assert (found.n, found.width, found.ranked) == (n, width, ranked)
    assert job(params, stream=True).streamed is not ranked
    assert job(params, stream=False).streamed is False


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"guided_decoding": 5}, "guided_decoding: an object"),
        ({"guided_json": {}, "guided_regex": ""}, "an answer is held to one of guided_json"),
        ({"backend": "x"}, "backend is gone: "),
    ],
)
def test_no_object_is_named_for_the_parameters_of_a_body(params: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Sampling.read(params, "")
    assert caught.value.message.startswith(message)
    assert caught.value.param in params


@pytest.mark.parametrize("beam", [True, False])
def test_a_default_of_beam_search_may_be_written_out(beam: bool) -> None:
    written = {"length_penalty": 1, "early_stopping": False}
    assert sampling({"use_beam_search": beam, **written}) == sampling({"use_beam_search": beam})


def test_vllm_gets_what_is_not_translated_as_it_was_sent() -> None:
    rest = {"temperature": 0.5, "stop": ["a"], "no_such_parameter": {"a": [None]}, "logprobs": "x"}
    ours: dict[str, Any] = {"n": 2, "best_of": 3, "use_beam_search": True, "length_penalty": 0.5}
    ours |= {"early_stopping": "never", "return_token_log_probs": False}
    found = sampling({**rest, **ours})
    assert found.vllm == rest
    assert {name: getattr(found, name) for name in ours} == ours


def test_null_counts_as_absent_inside_and_outside() -> None:
    names = (*Sampling.model_fields, "temperature", "logits_processors", "guided_json", HOLDERS[0])
    nulls = dict.fromkeys(names)
    assert sampling(nulls) == sampling(**nulls) == sampling()
    assert sampling({"guided_regex": None}, guided_regex="a") == sampling(guided_regex="a")


@pytest.mark.parametrize(("params", "logprobs"), [({"logprobs": 5}, 5), ({"logprobs": None}, 0)])
def test_log_probabilities_are_asked_for_in_other_words(params: Any, logprobs: int) -> None:
    asked = {"return_token_log_probs": True}
    assert sampling({**params, **asked}).vllm == {"logprobs": logprobs}
    assert sampling(params, **asked).vllm == {"logprobs": logprobs}


# Structured outputs, beside sampling_params or in them:


def written(kind: str, value: Any) -> list[dict[str, Any]]:
    """Return a constraint in every spelling."""
    names = (kind, f"guided_{kind}")
    return [{names[1]: value}, *({holder: {name: value}} for holder in HOLDERS for name in names)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_becomes_vllms_own(kind: str) -> None:
    vllm = {"structured_outputs": {kind: KINDS[kind]}}
    for params in written(kind, KINDS[kind]):
        assert sampling(params).vllm == sampling(**params).vllm == vllm


def test_a_whitespace_pattern_goes_with_the_constraint_in_every_spelling() -> None:
    vllm = {"structured_outputs": {"json": {}, "whitespace_pattern": "[ ]?"}}
    for params in written("whitespace_pattern", "[ ]?"):
        assert sampling({"guided_json": {}, **params}).vllm == vllm
        assert sampling({"guided_json": {}}, **params).vllm == vllm


@pytest.mark.parametrize(
    ("params", "structured"),
    [
        # Other keys of vLLM's own object are passed on.
        ({"structured_outputs": {"regex": "a", "other": 1}}, {"regex": "a", "other": 1}),
        # A switch that is off leaves room for another constraint; nothing else can be off.
        ({"guided_json_object": False, "guided_regex": "a"}, {"regex": "a"}),
        *(({holder: {"json_object": False, "regex": "a"}}, {"regex": "a"}) for holder in HOLDERS),
        ({"guided_json": False}, {"json": False}),
        # Empty objects and nulls constrain nothing.
        *(({holder: {"json": None}, "guided_regex": "a"}, {"regex": "a"}) for holder in HOLDERS),
        *(({holder: {}}, None) for holder in HOLDERS),
    ],
    ids=str,
)
def test_what_constrains_an_answer_becomes_vllms(params: Any, structured: Any) -> None:
    vllm = {"structured_outputs": structured} if structured else {}
    assert sampling(params).vllm == sampling(**params).vllm == vllm
