"""Sampling parameters that vLLM does not have by that name: checked and translated."""

from typing import Any

import pytest
from support.tables.sampling_jobs import every_place, job, placed, refusal, sampling

from worker.errors import InvalidInput
from worker.job.sampling import Sampling

# n and best_of:


@pytest.mark.parametrize("n", [1, 2, 256])
def test_there_are_as_many_choices_as_asked_for(n: int) -> None:
    assert (sampling({"n": n}).n, sampling({"n": n}).width) == (n, n)


@pytest.mark.parametrize(
    ("params", "width"),
    [
        ({}, 1),
        ({"best_of": 1}, 1),
        ({"best_of": 3}, 3),
        ({"n": 2, "best_of": 2}, 2),
        ({"n": 2, "best_of": 256}, 256),
        ({"n": 256, "best_of": 256}, 256),
        ({"n": 2, "best_of": None}, 2),
        ({"n": None, "best_of": None}, 1),
    ],
)
def test_best_of_is_how_many_are_generated(params: dict[str, Any], width: int) -> None:
    assert sampling(params).width == width


@pytest.mark.parametrize(
    ("params", "ranked"),
    [
        ({}, False),
        ({"n": 2}, False),
        ({"best_of": 1}, False),
        ({"n": 2, "best_of": 2}, False),
        ({"use_beam_search": False}, False),
        ({"best_of": 2}, True),
        ({"n": 2, "best_of": 3}, True),
        ({"use_beam_search": True}, True),
        ({"use_beam_search": True, "n": 2, "best_of": 2}, True),
    ],
)
def test_choices_that_must_be_compared_first_are_not_streamed(
    params: dict[str, Any], ranked: bool
) -> None:
    assert sampling(params).ranked is ranked
    assert job(params, stream=True).streamed is not ranked
    assert job(params, stream=False).streamed is False


WRONG: dict[str, list[Any]] = {
    "n": [0, -1, 257, 1.0, "2", True, [1], {}],
    "best_of": [0, -1, 257, 2.0, "2", True, [2], {}],
    "use_beam_search": [0, 1, "true", [], {}],
    "length_penalty": ["1.0", True, [], float("nan"), float("inf"), -float("inf")],
    "early_stopping": [True, "always", "false", 1, []],
    "return_token_log_probs": [0, 1, "yes"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_wrong_value_is_refused_by_the_bare_name_of_its_parameter(name: str, value: Any) -> None:
    error = refusal({"use_beam_search": True, name: value})
    assert (error.status, error.param) == (400, name)
    assert error.message.startswith(f"sampling_params.{name}: ")


@pytest.mark.parametrize(("n", "best_of"), [(2, 1), (256, 255)])
def test_the_best_are_not_chosen_from_fewer(n: int, best_of: int) -> None:
    error = refusal({"n": n, "best_of": best_of})
    assert (error.status, error.param) == (400, "best_of")
    assert "at least n" in error.message


@pytest.mark.parametrize("wrong", ["n", 7, True, [], [{"n": 1}]])
def test_sampling_params_are_an_object(wrong: Any) -> None:
    error = refusal(wrong)
    assert error.param == "sampling_params"


def test_all_mistakes_are_named_and_the_first_is_the_param() -> None:
    error = refusal({"best_of": "2", "n": 0})
    assert error.param == "n"
    assert "sampling_params.n: " in error.message
    assert "sampling_params.best_of: " in error.message


@pytest.mark.parametrize(
    ("params", "separator", "message"),
    [
        ({"n": 0}, ".", "n: Input should be greater than or equal to 1"),
        ({"guided_decoding": 5}, ".", "guided_decoding: an object"),
        ({"guided_json": {}, "guided_regex": ""}, ": ", "an answer is held to one of guided_json"),
        ({"backend": "x"}, ": ", "backend is gone: "),
    ],
)
def test_a_message_names_the_object_that_holds_the_parameters_if_there_is_one(
    params: dict[str, Any], separator: str, message: str
) -> None:
    for holder, prefix in (("sampling_params", f"sampling_params{separator}"), ("", "")):
        with pytest.raises(InvalidInput) as caught:
            Sampling.read(params, holder)
        assert caught.value.message.startswith(prefix + message)
        assert caught.value.param in params


# Beam search:


@pytest.mark.parametrize(
    ("name", "value"),
    [("length_penalty", 0.5), ("length_penalty", 2), ("early_stopping", "never")],
)
def test_beam_search_parameters_are_refused_without_beam_search(name: str, value: Any) -> None:
    assert getattr(sampling({"use_beam_search": True, name: value}), name) == value
    for rest in ({}, {"use_beam_search": False}, {"best_of": 2}):
        error = refusal({name: value, **rest})
        assert error.param == name
        assert "use_beam_search" in error.message


@pytest.mark.parametrize("beam", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [("length_penalty", 1.0), ("length_penalty", 1), ("early_stopping", False)],
)
def test_a_default_of_beam_search_may_be_written_out(name: str, value: Any, beam: bool) -> None:
    assert sampling({"use_beam_search": beam, name: value}) == sampling({"use_beam_search": beam})


@pytest.mark.parametrize("beam", [True, False])
def test_a_search_that_stops_early_is_refused_with_the_reason(beam: bool) -> None:
    error = refusal({"use_beam_search": beam, "early_stopping": True})
    assert error.param == "early_stopping"
    assert "goes on until no better answer can come" in error.message


# Parameters for vLLM:


def test_vllm_gets_what_is_not_translated_as_it_was_sent() -> None:
    rest = {"temperature": 0.5, "stop": ["a"], "no_such_parameter": {"a": [None]}, "logprobs": "x"}
    ours = {
        "n": 2,
        "best_of": 3,
        "use_beam_search": True,
        "length_penalty": 0.5,
        "early_stopping": "never",
        "return_token_log_probs": False,
    }
    assert sampling({**rest, **ours}).vllm == rest


@pytest.mark.parametrize(
    "name",
    [
        "n",
        "best_of",
        "use_beam_search",
        "length_penalty",
        "early_stopping",
        "return_token_log_probs",
        "temperature",
        "guided_json",
        "structured_outputs",
        "guided_decoding_backend",
        "logits_processors",
    ],
)
def test_null_counts_as_absent(name: str) -> None:
    assert sampling({name: None}) == sampling()
    assert sampling({name: None}).vllm == {}


@every_place
@pytest.mark.parametrize("name", ["guided_json", "structured_outputs", "return_token_log_probs"])
def test_null_outside_sampling_params_counts_as_absent(place: str, name: str) -> None:
    assert sampling(**placed(place, {name: None})) == sampling()


@every_place
@pytest.mark.parametrize(
    ("params", "logprobs"),
    [({}, 0), ({"logprobs": 5}, 5), ({"logprobs": 0}, 0), ({"logprobs": None}, 0)],
)
def test_log_probabilities_of_the_tokens_alone_are_asked_for_in_other_words(
    place: str, params: dict[str, Any], logprobs: int
) -> None:
    asked = {"return_token_log_probs": True}
    given = sampling({**params, **asked}) if place == "inside" else sampling(params, **asked)
    assert given.vllm == {"logprobs": logprobs}


@every_place
def test_log_probabilities_that_are_not_asked_for_are_none(place: str) -> None:
    assert sampling(**placed(place, {"return_token_log_probs": False})).vllm == {}
