"""Sampling parameters of requests to vLLM's server, and the selection among its choices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as search
from hypothesis import strategies as st
from support.engine.scripted import CHAT, ScriptedEngine, chat_job, settings, tokens, yields_of

from worker.dialects.openai.forward import Ranking, prepare_body
from worker.dialects.table import ROUTES
from worker.errors import InvalidInput
from worker.job import OpenAIJob

COMPLETIONS = "/v1/completions"

Prepared = tuple[dict[str, Any], Ranking | None]
Prepare = Callable[..., Prepared]


@pytest.fixture
def prepare(engine: ScriptedEngine) -> Prepare:
    """Return a function that prepares a body with the passed keys and refuses unknown keys."""

    def prepare_keys(path: str, **body: Any) -> Prepared:
        job = OpenAIJob(route=path, body=body)
        (row,) = (row for row in ROUTES if row.path == path)
        return prepare_body(job, row, engine, "job-1", settings(STRICT_REQUESTS="1"))

    return prepare_keys


def refusal(prepare: Prepare, path: str, **body: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidInput) as caught:
        prepare(path, **body)
    return caught.value.message, caught.value.param


# Temperature:


@pytest.mark.parametrize(
    ("default", "sent", "expected"),
    [(None, None, 0.7), (0.0, None, 0.0), (0.3, None, 0.3), (0.3, 0, 0)],
)
def test_a_chat_takes_the_temperature_of_the_caller_of_the_model_or_0_7(
    prepare: Prepare, engine: ScriptedEngine, default: float | None, sent: Any, expected: float
) -> None:
    engine.model = replace(engine.model, temperature=default)
    assert prepare(CHAT, temperature=sent)[0]["temperature"] == expected
    # Other routes and beam search get no default temperature.
    for path in (COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize"):
        assert "temperature" not in prepare(path)[0]
    assert "temperature" not in prepare(CHAT, use_beam_search=True)[0]


# Translations:


def test_structured_output_keys_get_vllms_current_name(prepare: Prepare) -> None:
    former: Any = {"guided_regex": "a+", "guided_decoding_backend": "guidance"}
    both = {**former, "structured_outputs": {"regex": "a+"}}
    for sent in ({"guided_regex": "a+"}, {"guided_options_request": {"guided_regex": "a+"}}, both):
        result, _ = prepare(COMPLETIONS, prompt="", **sent)
        assert result == {"prompt": "", "model": "demo", "structured_outputs": {"regex": "a+"}}


def test_numbers_may_be_written_as_for_vllms_server(prepare: Prepare) -> None:
    sent: Any = {"n": "2", "best_of": 3.0, "use_beam_search": "true", "length_penalty": "0.5"}
    ranking = Ranking(2, 3, True, False)
    kept = {"use_beam_search": "true", "length_penalty": "0.5"}
    assert prepare(COMPLETIONS, **sent) == ({"model": "demo", "n": 3, **kept}, ranking)


def test_keys_without_effect_are_left_out(prepare: Prepare) -> None:
    keys = {"guided_json_object": False, "guided_decoding": {}, "best_of": 1, "n": None}
    assert prepare(COMPLETIONS, **keys) == ({"model": "demo"}, None)


def test_vllms_internal_keys_are_refused(prepare: Prepare) -> None:
    error = refusal(prepare, "/v1/responses", structured_outputs={"regex": "a", "_backend": "x"})
    assert error == ("structured_outputs._backend: unknown key", "structured_outputs._backend")


def test_old_keys_that_vllms_server_still_accepts_are_passed_on(
    prepare: Prepare, engine: ScriptedEngine
) -> None:
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "truncate_prompt_tokens"})}
    result, _ = prepare(COMPLETIONS, truncate_prompt_tokens=5)
    assert result == {"truncate_prompt_tokens": 5, "model": "demo"}


EMPTY = "an empty prompt has no tokens whose log probabilities could be echoed"
GREEDY = "greedy sampling (temperature 0) gives the same text every time"
STREAM = "ranked choices can only be returned at the end: leave out stream"
LOGPROBS = "return_token_log_probs"
LOGITS = "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them"


SCHEMAS: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"guided_regex": "a+"},
}


# One value of each kind; tests/unit/job covers the others.
@pytest.mark.parametrize(
    ("sent", "param", "message"),
    [
        ({"n": 257}, "n", "n: Input should be less than or equal to 256"),
        ({"n": 3, "best_of": 2}, "best_of", "best_of: at least n, which are chosen from that many"),
        ({"logits_processors": "x"}, "logits_processors", f"logits_processors is gone: {LOGITS}"),
        ({LOGPROBS: True}, LOGPROBS, f"unknown key {LOGPROBS!r}"),
        ({"best_of": 2, "temperature": 0}, "best_of", f"best_of: {GREEDY}"),
        ({"prompt": "", "echo": True, "logprobs": 0}, "prompt", f"prompt: {EMPTY}"),
        ({"prompt": ["a", ""], "echo": True, "logprobs": 0}, "prompt", f"prompt: {EMPTY}"),
        ({"best_of": 2, "stream": True}, "best_of", f"best_of: {STREAM}"),
        (
            {"use_beam_search": True, "stream": True},
            "use_beam_search",
            f"use_beam_search: {STREAM}",
        ),
        *(
            ({"use_beam_search": True, **sent}, name, f"{name}: beam search ignores it")
            for name, sent in SCHEMAS.items()
        ),
    ],
    ids=repr,
)
def test_a_wrong_value_is_refused_with_its_key(
    prepare: Prepare, sent: dict[str, Any], param: str, message: str
) -> None:
    assert refusal(prepare, COMPLETIONS, **{"prompt": "a", **sent}) == (message, param)


def test_best_of_is_an_unknown_key_on_routes_without_choices(prepare: Prepare) -> None:
    for path in ("/v1/responses", "/v1/messages", "/tokenize"):
        assert refusal(prepare, path, best_of=2) == ("unknown key 'best_of'", "best_of")


def test_empty_prompts_without_echoed_logprobs_and_token_ids_are_passed_on(
    prepare: Prepare,
) -> None:
    for sent in (
        {"prompt": [[1], [2]], "echo": True, "logprobs": 0},
        {"prompt": "", "echo": True},
        {"prompt": "", "echo": False, "logprobs": 1},
    ):
        assert prepare(COMPLETIONS, **sent)[0] == {**sent, "model": "demo"}


# Ranked choices:

BEAMS = {"use_beam_search": True, "length_penalty": 0.5}


@pytest.mark.parametrize(
    ("path", "sent", "body", "ranking"),
    [
        (COMPLETIONS, {"n": 2, "best_of": 2}, {"n": 2}, None),
        (COMPLETIONS, {"n": 2, "best_of": 4}, {"n": 4, "logprobs": 0}, Ranking(2, 4, False, False)),
        *(
            (COMPLETIONS, {"best_of": 3, "logprobs": count}, {"n": 3}, Ranking(1, 3, False, True))
            for count in (0, 2)
        ),
        (CHAT, {"best_of": 3}, {"n": 3, "logprobs": True}, Ranking(1, 3, False, False)),
        (
            CHAT,
            {"best_of": 3, "logprobs": False},
            {"n": 3, "logprobs": True},
            Ranking(1, 3, False, False),
        ),
        (CHAT, {"best_of": 3, "logprobs": True}, {"n": 3}, Ranking(1, 3, False, True)),
        # Beams need no log probabilities.
        (COMPLETIONS, {"n": 2, **BEAMS}, {}, Ranking(2, 2, True, False)),
        (
            COMPLETIONS,
            {"best_of": 3, "early_stopping": "never", **BEAMS},
            {"n": 3},
            Ranking(1, 3, True, False),
        ),
    ],
    ids=str,
)
def test_best_of_requests_that_many_choices_from_vllm_and_ranks_them(
    prepare: Prepare, path: str, sent: dict[str, Any], body: dict[str, Any], ranking: Any
) -> None:
    if path == CHAT:
        sent, body = {**sent, "messages": []}, {**body, "messages": [], "temperature": 0.7}
    kept = {key: value for key, value in sent.items() if key not in ("best_of", "early_stopping")}
    prepared, found = prepare(path, **sent)
    assert (prepared, found) == ({"model": "demo", **kept, **body}, ranking)
    # True is no number for vLLM's server, and 0 is no boolean.
    assert type(prepared.get("logprobs")) is type({**kept, **body}.get("logprobs"))


def test_best_of_is_refused_with_greedy_sampling(prepare: Prepare, engine: ScriptedEngine) -> None:
    assert prepare(COMPLETIONS, best_of=2, temperature=0, use_beam_search=True)[1]
    engine.model = replace(engine.model, temperature=0.0)
    message, param = refusal(prepare, CHAT, best_of=2)
    assert (message.endswith("gives the same text every time"), param) == (True, "best_of")


async def test_a_job_yields_the_likeliest_choice(engine: ScriptedEngine) -> None:
    engine.script = (*tokens("a"), *tokens("b", index=1))
    payload = chat_job(stream=False)
    payload["openai_input"] |= {"use_beam_search": True, "best_of": 2}
    (answer,) = await yields_of(engine, payload)
    assert [request["n"] for request in engine.requests if isinstance(request, dict)] == [2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a"]


def test_beam_search_accepts_sampling_keys_with_their_defaults(
    prepare: Prepare, engine: ScriptedEngine
) -> None:
    sent = {"top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "seed": 0, "stop": []}
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "use_beam_search", *sent})}
    assert prepare(COMPLETIONS, use_beam_search=True, **sent)[1]


# The selection among vLLM's choices:


def chat_choice(index: int, *logprobs: float) -> dict[str, Any]:
    content = [{"token": "x", "logprob": value} for value in logprobs]
    message = {"content": f"text {index}"}
    return {"index": index, "message": message, "logprobs": {"content": content}}


def completion_choice(index: int, *logprobs: float | None) -> dict[str, Any]:
    details = {"token_logprobs": [*logprobs], "tokens": ["x"] * len(logprobs)}
    return {"index": index, "text": f"text {index}", "logprobs": details}


def select_best(
    n: int, width: int, *choices: dict[str, Any], **options: bool
) -> list[dict[str, Any]]:
    ranking = Ranking(n, width, **{"is_ranked_by_vllm": False, "returns_logprobs": True, **options})
    best: list[dict[str, Any]] = ranking.select_best({"choices": [*choices]})["choices"]
    return best


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, int, list[list[list[float]]]]:
    """Draw n, the width, and the log probabilities of every prompt's choices."""
    width = draw(st.integers(1, 4))
    # Whole numbers, so that float sums are exact.
    values = st.lists(st.integers(-9, 0).map(float), min_size=1, max_size=3)
    groups = st.lists(values, min_size=width, max_size=width)
    return draw(st.integers(1, width)), width, draw(st.lists(groups, min_size=1, max_size=3))


@given(answers(), st.randoms(), st.sampled_from([chat_choice, completion_choice]))
@search(max_examples=50)
def test_each_prompt_gets_its_likeliest_choices_in_order_of_likelihood(
    example: tuple[int, int, list[list[list[float]]]], random: Any, make_choice: Any
) -> None:
    n, width, groups = example
    logprobs = [values for group in groups for values in group]
    choices = [
        make_choice(place, *values) | {"from": place} for place, values in enumerate(logprobs)
    ]
    random.shuffle(choices)
    best = select_best(n, width, *choices)
    assert [choice["index"] for choice in best] == list(range(n * len(groups)))
    assert len({choice["from"] for choice in best}) == len(best)
    for place, group in enumerate(groups):
        origins = [choice["from"] for choice in best[place * n : (place + 1) * n]]
        assert {origin // width for origin in origins} == {place}
        sums = sorted(map(sum, group), reverse=True)
        assert [sum(logprobs[origin]) for origin in origins] == sums[:n]


@pytest.mark.parametrize(
    ("n", "choices", "expected"),
    [
        (2, [completion_choice(index, -1.0, -1.0) for index in (2, 1, 0)], [0, 1]),
        (1, [completion_choice(0, None, -2.0), completion_choice(1, None, -1.0)], [1]),
        (1, [completion_choice(0, -0.5), completion_choice(1)], [1]),
    ],
    ids=["first of equal choices", "without the echoed prompt", "a choice without tokens first"],
)
def test_the_likeliest_choices_are_selected(
    n: int, choices: list[dict[str, Any]], expected: list[int]
) -> None:
    best = select_best(n, len(choices), *choices)
    assert [choice["text"] for choice in best] == [f"text {index}" for index in expected]


def test_beams_keep_vllms_order() -> None:
    choices = [{**completion_choice(index), "logprobs": None} for index in range(6)]
    best = select_best(2, 3, *choices, is_ranked_by_vllm=True, returns_logprobs=False)
    texts = [(choice["index"], choice["text"]) for choice in best]
    assert texts == [(0, "text 0"), (1, "text 1"), (2, "text 3"), (3, "text 4")]


@pytest.mark.parametrize("make_choice", [chat_choice, completion_choice])
def test_log_probabilities_are_returned_only_on_request(make_choice: Any) -> None:
    choices = make_choice(0, -1.0), make_choice(1, -0.5)
    best = choices[1] | {"index": 0}
    assert select_best(1, 2, *choices) == [best]
    assert select_best(1, 2, *choices, returns_logprobs=False) == [{**best, "logprobs": None}]
    # All other fields of the response stay.
    answer = {"id": "x", "usage": {"total_tokens": 9}, "choices": choices}
    assert Ranking(1, 2, False, True).select_best(answer) == {**answer, "choices": [best]}
