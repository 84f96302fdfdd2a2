"""Sampling parameters: translated into vLLM's, and bounded on both paths."""

from typing import Any

import pytest
from support.engine.answers import answered, refused
from support.engine.scripted import CHAT, ScriptedEngine, tokens, yields_of

from worker.dialects import parse_input
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.job.sampling import Sampling
from worker.limits.parameters import BOUNDS, INT32, INT64

# Constraints of structured output, and the objects that can hold them.
KINDS: dict[str, Any] = {"json": {"type": "object"}, "regex": "a+", "choice": ["a", "b"]}
KINDS |= {"grammar": 'root ::= "a"', "json_object": True}
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


def test_vllm_gets_what_is_not_translated_as_it_was_sent() -> None:
    rest = {"temperature": 0.5, "stop": ["a"], "no_such_parameter": {"a": [None]}, "logprobs": "x"}
    ours: dict[str, Any] = {"n": 2, "best_of": 3, "use_beam_search": True, "length_penalty": 0.5}
    ours |= {"early_stopping": "never", "return_token_log_probs": False}
    # The defaults of beam search may be written out.
    assert sampling({"length_penalty": 1, "early_stopping": False}) == sampling()
    found = sampling({**rest, **ours})
    assert found.vllm == rest
    assert {name: getattr(found, name) for name in ours} == ours


def test_null_counts_as_absent_inside_and_outside() -> None:
    names = (*Sampling.model_fields, "temperature", "logits_processors", "guided_json", HOLDERS[0])
    nulls = dict.fromkeys(names)
    assert sampling(nulls) == sampling(**nulls) == sampling()
    assert sampling({"guided_regex": None}, guided_regex="a") == sampling(guided_regex="a")


def test_log_probabilities_are_asked_for_in_other_words() -> None:
    asked = {"return_token_log_probs": True}
    for logprobs, expected in ((5, 5), (None, 0)):
        params = {"logprobs": logprobs}
        assert sampling({**params, **asked}).vllm == {"logprobs": expected}
        assert sampling(params, **asked).vllm == {"logprobs": expected}


# Structured outputs, beside sampling_params or in them:


def written(kind: str, value: Any) -> list[dict[str, Any]]:
    """Return a constraint in every spelling."""
    names = (kind, f"guided_{kind}")
    return [{names[1]: value}, *({holder: {name: value}} for holder in HOLDERS for name in names)]


def test_every_spelling_becomes_vllms_own() -> None:
    for kind, value in KINDS.items():
        for params in written(kind, value):
            vllm = {"structured_outputs": {kind: value}}
            assert sampling(params).vllm == sampling(**params).vllm == vllm
    # A pattern for white space goes with a constraint.
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


# Bounds, on both paths:


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


AT: dict[str, Any] = {
    **{"min_tokens": INT32, "max_tokens": INT32, "seed": -INT64 - 1, "repetition_penalty": 10},
    **{"presence_penalty": -2, "frequency_penalty": 2, "stop": ["a" * 256, *names(63)]},
    **{"bad_words": names(64), "stop_token_ids": list(range(64))},
    **{"allowed_token_ids": list(range(300)), "logprob_token_ids": list(range(128))},
    "logit_bias": dict.fromkeys(names(300), -100),
    "repetition_detection": {"max_pattern_size": 256, "min_count": 256},
}
TO_INT32 = f"from {-INT32:,} to {INT32:,}"
TO_INT64 = f"from {-INT64 - 1:,} to {INT64:,}"
ABOVE: list[tuple[str, Any, str]] = [
    ("min_tokens", INT32 + 1, TO_INT32),
    ("thinking_token_budget", INT32 + 1, TO_INT32),
    ("prompt_logprobs", INT32 + 1, TO_INT32),
    ("seed", INT64 + 1, TO_INT64),
    ("stop", "a" * 257, "one has 257 characters, at most 256"),
    ("stop", ["a" * 257], "one has 257 characters, at most 256"),
    ("stop", names(65), "65 of them, at most 64"),
    ("bad_words", names(65), "65 of them, at most 64"),
    ("stop_token_ids", list(range(65)), "65 of them, at most 64"),
    ("allowed_token_ids", list(range(301)), "301 of them, at most 300"),
    ("logprob_token_ids", list(range(129)), "129 of them, at most 128"),
    ("logit_bias", dict.fromkeys(names(301), 1), "301 of them, at most 300"),
    ("logit_bias", {"5": 1e300}, "from -100 to 100"),
    ("repetition_penalty", 10.5, "above 0 to 10"),
    ("repetition_penalty", 0, "above 0 to 10"),
    ("presence_penalty", 2.5, "from -2 to 2"),
    ("repetition_detection", {"max_pattern_size": 257}, "max_pattern_size: from 0 to 256"),
]
# Their texts are numbers for vLLM's server, and they have names of their own.
ABOVE_IN_BODIES: list[tuple[str, Any, str]] = [
    ("max_tokens", INT32 + 1, TO_INT32),
    ("max_completion_tokens", INT32 + 1, TO_INT32),
    ("max_output_tokens", INT32 + 1, TO_INT32),
    ("stop_sequences", ["a" * 257], "one has 257 characters, at most 256"),
    ("top_logprobs", INT32 + 1, TO_INT32),
    ("truncate_prompt_tokens", INT32 + 1, TO_INT32),
    ("repetition_penalty", "1e300", "above 0 to 10"),
    ("seed", str(INT64 + 1), TO_INT64),
    ("logit_bias", {"5": "nan"}, "from -100 to 100"),
]


def raw(**params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "sampling_params": params}


def body(**params: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": "Hi", **params}}


async def test_what_is_at_its_bound_is_accepted_on_both_paths() -> None:
    for job in (raw(**AT), body(**AT)):
        assert "error" not in (await answered(job, *tokens("a")))[-1]


@pytest.mark.parametrize(("name", "value", "message"), ABOVE)
async def test_raw_jobs_above_a_bound_are_refused(name: str, value: Any, message: str) -> None:
    error = await refused(raw(**{name: value}))
    assert (error["code"], error["param"]) == (400, name)
    assert error["message"] == f"sampling_params.{name}: {message}"


@pytest.mark.parametrize(("name", "value", "message"), [*ABOVE, *ABOVE_IN_BODIES])
async def test_bodies_above_a_bound_are_refused(name: str, value: Any, message: str) -> None:
    error = await refused(body(**{name: value}))
    assert (error["code"], error["param"]) == (400, name)
    assert error["message"] == f"{name}: {message}"


async def test_repeated_items_count_once() -> None:
    params = {"allowed_token_ids": [5, 6] * 5_000, "bad_words": ["a", "b"] * 400}
    once = {"allowed_token_ids": [5, 6], "bad_words": ["a", "b"]}
    assert RawJob.read(raw(**params)).sampling_params.vllm == once
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, body(**params))
    (asked,) = engine.asked
    assert isinstance(asked, dict)
    assert {name: asked[name] for name in once} == once
    # More tokens than the engine can count are cut.
    assert RawJob.read(raw(max_tokens=INT64)).sampling_params.vllm == {"max_tokens": INT32}


def test_values_of_wrong_types_are_left_to_vllm() -> None:
    values: list[Any] = [None, True, {}, [], "five", [{}], {"a": {}}, [[1]]]
    refused = [(bound, value) for bound in BOUNDS.values() for value in values]
    assert [pair for pair in refused if pair[0].refusal(pair[1])] == []
