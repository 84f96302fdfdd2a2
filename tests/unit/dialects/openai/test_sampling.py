"""Sampling parameters of requests to vLLM's server, and which of its choices callers get."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.scripted import CHAT, ScriptedEngine, chat, settings, tokens, yields_of

from worker.dialects.openai.bodies import Prepared, prepare
from worker.dialects.openai.ranking import Ranking
from worker.dialects.table import ROUTES
from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.sampling import Sampling

COMPLETIONS = "/v1/completions"

Ask = Callable[..., Prepared]


@pytest.fixture
def ask(engine: ScriptedEngine) -> Ask:
    """Prepare a body of these keys; unknown ones are refused."""

    def prepared(path: str, **body: Any) -> Prepared:
        job = OpenAIJob(route=path, body=body)
        (row,) = (row for row in ROUTES if row.path == path)
        return prepare(job, row, engine, "job-1", settings(STRICT_REQUESTS="1"))

    return prepared


def refusal(ask: Ask, path: str, **body: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidInput) as caught:
        ask(path, **body)
    return caught.value.message, caught.value.param


# Temperature:


@pytest.mark.parametrize(
    ("default", "sent", "expected"),
    [(None, None, 0.7), (0.0, None, 0.0), (0.3, None, 0.3), (0.3, 0, 0)],
)
def test_a_chats_temperature_is_the_callers_else_the_models_else_0_7(
    ask: Ask, engine: ScriptedEngine, default: float | None, sent: Any, expected: float
) -> None:
    engine.model = replace(engine.model, temperature=default)
    assert (ask(CHAT, temperature=sent).body or {})["temperature"] == expected
    # Only chats get one, and no beam does.
    for path in (COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize"):
        assert "temperature" not in (ask(path).body or {})
    assert "temperature" not in (ask(CHAT, use_beam_search=True).body or {})


# Translations:


def test_structured_output_keys_get_vllms_current_name(ask: Ask) -> None:
    for sent in ({"guided_regex": "a+"}, {"guided_options_request": {"guided_regex": "a+"}}):
        asked = ask(COMPLETIONS, prompt="", **sent)
        assert asked.body == {"prompt": "", "model": "demo", "structured_outputs": {"regex": "a+"}}


def test_keys_that_ask_for_nothing_are_left_out(ask: Ask) -> None:
    nothing = {"guided_json_object": False, "guided_decoding": {}, "best_of": 1, "n": None}
    assert ask(COMPLETIONS, **nothing) == Prepared({"model": "demo"})


def test_vllms_internal_keys_are_refused(ask: Ask) -> None:
    refused = refusal(ask, "/v1/responses", structured_outputs={"regex": "a", "_backend": "x"})
    assert refused == ("structured_outputs: unknown key '_backend'", "structured_outputs")


def test_keys_that_vllms_server_still_takes_are_passed_on(ask: Ask, engine: ScriptedEngine) -> None:
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "truncate_prompt_tokens"})}
    asked = ask(COMPLETIONS, truncate_prompt_tokens=5)
    assert asked.body == {"truncate_prompt_tokens": 5, "model": "demo"}


EMPTY = "an empty prompt has no tokens whose log probabilities could be echoed"
GREEDY = "greedy sampling (temperature 0) gives the same text every time"
STREAM = "what is compared comes when all of it is there: leave out stream"
LOGPROBS = "return_token_log_probs"
LOGITS = "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them"


# One value of each kind, named as the caller wrote it: unit/job has the others.
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
            ({"use_beam_search": True, name: value}, name, f"{name}: beam search does not heed it")
            for name, value in {"top_p": 0.5, "top_k": 1, "seed": 1, "stop": ["a"]}.items()
        ),
    ],
    ids=repr,
)
def test_a_value_is_refused_by_its_name(
    ask: Ask, sent: dict[str, Any], param: str, message: str
) -> None:
    assert refusal(ask, COMPLETIONS, **{"prompt": "a", **sent}) == (message, param)


def test_best_of_is_an_unknown_key_on_routes_without_choices(ask: Ask) -> None:
    for path in ("/v1/responses", "/v1/messages", "/tokenize"):
        assert refusal(ask, path, best_of=2) == ("unknown key 'best_of'", "best_of")


def test_empty_prompts_without_echoed_logprobs_and_token_ids_are_passed_on(ask: Ask) -> None:
    for sent in (
        {"prompt": [[1], [2]], "echo": True, "logprobs": 0},
        {"prompt": "", "echo": True},
        {"prompt": "", "echo": False, "logprobs": 1},
    ):
        assert ask(COMPLETIONS, **sent).body == {**sent, "model": "demo"}


# Ranked choices:

BEAMS = {"use_beam_search": True, "length_penalty": 0.5}


@pytest.mark.parametrize(
    ("sent", "body", "ranking"),
    [
        ({"n": 2, "best_of": 2}, {"n": 2}, None),
        ({"n": 2, "best_of": 4}, {"n": 4, "logprobs": 0}, Ranking(2, 4, False, False)),
        (
            {"n": 1, "best_of": 3, "early_stopping": "never", **BEAMS},
            {"n": 3, **BEAMS},
            Ranking(1, 3, True, False),
        ),
    ],
    ids=["all are wanted", "more than are wanted", "beams"],
)
def test_more_choices_than_are_wanted_are_asked_for_and_ranked(
    ask: Ask, sent: dict[str, Any], body: dict[str, Any], ranking: Ranking | None
) -> None:
    assert ask(COMPLETIONS, **sent) == Prepared({"model": "demo", **body}, ranking)


def test_greedy_answers_are_not_worth_comparing(ask: Ask, engine: ScriptedEngine) -> None:
    assert ask(COMPLETIONS, best_of=2, temperature=0, use_beam_search=True).ranking
    engine.model = replace(engine.model, temperature=0.0)
    message, param = refusal(ask, CHAT, best_of=2)
    assert (message.endswith("gives the same text every time"), param) == (True, "best_of")


async def test_the_likeliest_choice_is_what_a_job_yields(engine: ScriptedEngine) -> None:
    engine.script = (*tokens("a"), *tokens("b", index=1))
    payload = chat(stream=False)
    payload["openai_input"] |= {"use_beam_search": True, "best_of": 2}
    (answer,) = await yields_of(engine, payload)
    assert [asked["n"] for asked in engine.asked if isinstance(asked, dict)] == [2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a"]


def test_keys_that_ask_a_beam_search_for_nothing_are_accepted(
    ask: Ask, engine: ScriptedEngine
) -> None:
    sent = {"top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "seed": 0, "stop": []}
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "use_beam_search", *sent})}
    assert ask(COMPLETIONS, use_beam_search=True, **sent).ranking


# Which of vLLM's choices remain:


def chat_choice(index: int, *logprobs: float) -> dict[str, Any]:
    content = [{"token": "x", "logprob": value} for value in logprobs]
    message = {"content": f"text {index}"}
    return {"index": index, "message": message, "logprobs": {"content": content}}


def completion_choice(index: int, *logprobs: float | None) -> dict[str, Any]:
    details = {"token_logprobs": [*logprobs], "tokens": ["x"] * len(logprobs)}
    return {"index": index, "text": f"text {index}", "logprobs": details}


def best(n: int, width: int, *choices: dict[str, Any], **how: bool) -> list[dict[str, Any]]:
    ranking = Ranking(n, width, **{"ranked": False, "shows_logprobs": True, **how})
    kept: list[dict[str, Any]] = ranking.best({"choices": [*choices]})["choices"]
    return kept


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, int, list[list[list[float]]]]:
    """Draw n, the width, and for every prompt its choices' log probabilities."""
    width = draw(st.integers(1, 4))
    # Whole numbers, so that equal sums are equal.
    values = st.lists(st.integers(-9, 0).map(float), min_size=1, max_size=3)
    groups = st.lists(values, min_size=width, max_size=width)
    return draw(st.integers(1, width)), width, draw(st.lists(groups, min_size=1, max_size=3))


@given(answers(), st.randoms(), st.sampled_from([chat_choice, completion_choice]))
def test_each_prompt_keeps_its_likeliest_choices_the_likeliest_first(
    asked: tuple[int, int, list[list[list[float]]]], random: Any, make: Any
) -> None:
    n, width, groups = asked
    likely = [values for group in groups for values in group]
    choices = [make(place, *values) | {"from": place} for place, values in enumerate(likely)]
    random.shuffle(choices)
    kept = best(n, width, *choices)
    assert [choice["index"] for choice in kept] == list(range(n * len(groups)))
    assert len({choice["from"] for choice in kept}) == len(kept)
    for place, group in enumerate(groups):
        origins = [choice["from"] for choice in kept[place * n : (place + 1) * n]]
        assert {origin // width for origin in origins} == {place}
        sums = sorted(map(sum, group), reverse=True)
        assert [sum(likely[origin]) for origin in origins] == sums[:n]


@pytest.mark.parametrize(
    ("n", "choices", "kept"),
    [
        (2, [completion_choice(index, -1.0, -1.0) for index in (2, 1, 0)], [0, 1]),
        (1, [completion_choice(0, None, -2.0), completion_choice(1, None, -1.0)], [1]),
        (1, [completion_choice(0, -0.5), completion_choice(1)], [1]),
    ],
    ids=["of equals the first", "an echoed prompt counts for nothing", "no token is the likeliest"],
)
def test_the_likeliest_remain(n: int, choices: list[dict[str, Any]], kept: list[int]) -> None:
    found = best(n, len(choices), *choices)
    assert [choice["text"] for choice in found] == [f"text {index}" for index in kept]


def test_beams_keep_the_order_that_they_come_in() -> None:
    choices = [{**completion_choice(index), "logprobs": None} for index in range(6)]
    kept = best(2, 3, *choices, ranked=True, shows_logprobs=False)
    texts = [(choice["index"], choice["text"]) for choice in kept]
    assert texts == [(0, "text 0"), (1, "text 1"), (2, "text 3"), (3, "text 4")]


@pytest.mark.parametrize("make", [chat_choice, completion_choice])
def test_log_probabilities_are_for_those_who_asked_for_them(make: Any) -> None:
    choices = make(0, -1.0), make(1, -0.5)
    assert best(1, 2, *choices) == [choices[1] | {"index": 0}]
    assert best(1, 2, *choices, shows_logprobs=False) == [
        choices[1] | {"index": 0, "logprobs": None}
    ]


def test_the_rest_of_an_answer_stays_as_it_is() -> None:
    answer = {"id": "x", "usage": {"total_tokens": 9}, "choices": [completion_choice(0, 0.0)]}
    assert Ranking(1, 1, ranked=False, shows_logprobs=True).best(answer) == answer


# The request to vLLM's server:


@pytest.mark.parametrize(
    ("body", "logprobs", "shows_logprobs"),
    [
        ({"messages": [], "logprobs": False}, True, False),
        ({"messages": [], "logprobs": True}, True, True),
        ({"prompt": ""}, 0, False),
        ({"prompt": "", "logprobs": 0}, 0, True),
        ({"prompt": "", "logprobs": 2}, 2, True),
    ],
    ids=repr,
)
def test_all_choices_are_asked_for_and_what_they_are_ranked_by(
    body: dict[str, Any], logprobs: Any, shows_logprobs: bool
) -> None:
    ranking = Ranking.begin(body, Sampling(n=2, best_of=5))
    assert ranking == Ranking(n=2, width=5, ranked=False, shows_logprobs=shows_logprobs)
    assert body["n"] == 5
    assert (body["logprobs"], type(body["logprobs"])) == (logprobs, type(logprobs))


@pytest.mark.parametrize(("best_of", "width"), [(None, 2), (4, 4)])
def test_beams_need_no_log_probabilities(best_of: int | None, width: int) -> None:
    body: dict[str, Any] = {"prompt": ""}
    ranking = Ranking.begin(body, Sampling(n=2, best_of=best_of, use_beam_search=True))
    assert ranking == Ranking(2, width, ranked=True, shows_logprobs=False)
    assert body == {"prompt": "", "n": width}
