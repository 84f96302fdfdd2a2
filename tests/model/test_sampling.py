"""Every sampling parameter of docs/reference/jobs.md: its default, effect and refused values."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from model.conftest import Ask
from support import ROOT
from support.engine.scripted import CHAT, failure
from support.releases import of_the_pinned, since
from support.tables.sampling import COUNT, FIVE, ROWS, SWITCHED_OFF, Answer

from worker.engine.run.generation.sampling import KNOWN
from worker.limits.spelling import GUIDED, GUIDED_OBJECTS

Answered = Callable[..., Awaitable[Answer]]

END = 3  # the token that ends a turn


@pytest.fixture
def answered(ask: Ask) -> Answered:
    async def answered(prompt: str, **params: Any) -> Answer:
        form = {"prompt": prompt, "apply_chat_template": prompt == COUNT}
        (whole,) = await ask(**form, sampling_params=params, return_token_ids=True)
        assert "error" not in whole, whole
        return Answer(whole)

    return answered


async def refusal(ask: Ask, **params: Any) -> dict[str, Any]:
    return failure(await ask(prompt="Once", sampling_params=params))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.default is not None])
async def test_the_documented_default_holds_without_it(name: str, answered: Answered) -> None:
    row = ROWS[name]
    without = await answered(row.prompt, **row.base)
    assert (await answered(row.prompt, **row.base, **{name: row.default})).whole == without.whole


# Another vLLM may lack some.
@pytest.mark.parametrize("name", sorted(ROWS.keys() & KNOWN))
async def test_it_has_the_documented_effect(name: str, answered: Answered) -> None:
    row = ROWS[name]
    plain = await answered(row.prompt, **row.base)
    changed = await answered(row.prompt, **row.base, **{name: row.given})
    assert row.effect(changed, plain), (changed.whole, plain.whole)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, row in ROWS.items() for value in row.refused]
)
async def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any, ask: Ask) -> None:
    error = await refusal(ask, **{**ROWS[name].base, name: value})
    assert error["code"] == 400
    assert name in f"{error['param']} {error['message']}" or "rammar" in error["message"]


@pytest.mark.parametrize("name", SWITCHED_OFF)
async def test_parameters_that_need_a_setting_are_refused_without_it(name: str, ask: Ask) -> None:
    error = await refusal(ask, **{name: SWITCHED_OFF[name]})
    assert (error["code"], name in error["message"]) == (400, True)


@of_the_pinned
def test_every_parameter_has_its_row_and_every_row_is_documented() -> None:
    known = KNOWN - GUIDED_OBJECTS | {"structured_outputs"}
    assert ROWS.keys() | SWITCHED_OFF.keys() == known - GUIDED
    text = (ROOT / "docs" / "reference" / "jobs.md").read_text()
    section = text.split("### Sampling parameters")[1].split("\n### ")[0]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.+?) \|", section, re.M))))
    assert documented == known


NO_EFFECT: list[dict[str, Any]] = [
    {"best_of": 2, "temperature": 0},
    {"use_beam_search": True, "best_of": 11},
    {"use_beam_search": True, "n": 2, "structured_outputs": {"regex": "a"}},
    *({"use_beam_search": True, "n": 2, name: 0.7} for name in ("top_p", "temperature")),
]


@pytest.mark.parametrize("params", NO_EFFECT, ids=str)
async def test_combinations_without_effect_are_refused(params: dict[str, Any], ask: Ask) -> None:
    error = await refusal(ask, **params)
    assert error["code"] == 400
    assert error["param"] in params


async def test_with_stop_strings_the_text_ends_before_a_stop_token(answered: Answered) -> None:
    answer = await answered(COUNT, temperature=0, stop_token_ids=[FIVE], stop=["zzz"])
    assert (answer.text, answer.choices[0]["stop_reason"]) == ("one, two, three, four,", FIVE)


async def test_best_of_returns_the_likeliest_of_that_many(answered: Answered) -> None:
    params = {"seed": 5, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    every = await answered("Once", **params, n=8)
    best = await answered("Once", **params, n=3, best_of=8)
    ranked = sorted(zip(every.likelihoods, every.texts, strict=True), reverse=True)
    assert best.texts == [text for _, text in ranked[:3]]
    assert best.whole["usage"]["output"] == 36


async def test_log_probabilities_of_chosen_tokens_can_be_ranked(answered: Answered) -> None:
    params = {"best_of": 3, "logprob_token_ids": [5, 6], "max_tokens": 4, "ignore_eos": True}
    assert len((await answered("Hello", **params)).choices[0]["logprobs"]) == 4


async def test_a_beam_finds_likelier_texts_than_greed_and_ranks_them(answered: Answered) -> None:
    params = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1}
    greedy = await answered("Once", **params, temperature=0)
    beam = await answered("Once", **params, use_beam_search=True, n=2, best_of=4)
    assert len(beam.choices) == 2
    assert beam.likelihoods == sorted(beam.likelihoods, reverse=True)
    assert beam.likelihoods[0] >= greedy.likelihoods[0]
    for choice in beam.choices:
        assert [position["id"] for position in choice["logprobs"]] == choice["token_ids"]
        assert all(1 <= len(position["top"]) <= 2 for position in choice["logprobs"])
        last = "".join(position["token"] for position in choice["logprobs"][-3:])
        assert last in choice["tokens"][0]


async def test_a_beam_ends_where_sampling_would(answered: Answered) -> None:
    # The demo model has two tokens that end a text, and vLLM's search knows one of them.
    ends = {1, END}
    answer = await answered("Hello", use_beam_search=True, n=3, max_tokens=80)
    for choice in answer.choices:
        assert not ends & set(choice["token_ids"][:-1])
        assert choice["finish_reason"] == ("stop" if len(choice["token_ids"]) < 80 else "length")
    assert any(choice["stop_reason"] == 1 for choice in answer.choices)


async def test_a_beam_ends_with_the_context(ask: Ask) -> None:
    params = {"use_beam_search": True, "n": 2, "max_tokens": 50, "ignore_eos": True}
    (whole,) = await ask(prompt=[5] * 1018, sampling_params=params, return_token_ids=True)
    # Of 1,024 tokens.
    assert [len(choice["token_ids"]) for choice in whole["choices"]] == [6, 6]


# Structured outputs:

ENDLESS = "root ::= a\na ::= b\nb ::= a"
OF_RESPONSES = {"input": "Hi", "structured_outputs": {"grammar": ENDLESS}}
# What xgrammar can't hold an answer to.
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TWO_BRANCHES = {"allOf": [{"type": "string"}, {"enum": ["yes", "no"]}]}
OF_BRANCHES = since("0.32", "vLLM let any JSON pass for it")


def chat(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": form}
    return {"openai_route": CHAT, "openai_input": body}


@pytest.mark.parametrize(
    "schema", [UNIQUE, pytest.param(TWO_BRANCHES, marks=OF_BRANCHES)], ids=["unique", "branches"]
)
async def test_what_xgrammar_lacks_is_refused_each_time(schema: dict[str, Any], ask: Ask) -> None:
    for _ in range(2):
        assert failure(await ask(**chat(schema)))["code"] == 400


@pytest.mark.parametrize(
    "job",
    [
        {"prompt": "Hi", "sampling_params": {"guided_grammar": ENDLESS}},
        {"prompt": "Hi", "sampling_params": {"guided_json": {"$ref": "#"}}, "stream": True},
        chat({"$ref": "#"}),
        {"openai_route": "/v1/responses", "openai_input": {**OF_RESPONSES, "stream": True}},
    ],
    ids=["grammar", "schema, streamed", "chat", "responses, streamed"],
)
async def test_what_nothing_satisfies_is_the_callers_mistake(job: dict[str, Any], ask: Ask) -> None:
    error = failure(await ask(**job))
    assert error["code"] == 400
    assert "nothing satisfies it" in error["message"]


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ({"guided_regex": "[0-9]{4}"}, r"\d{4}"),
        # A schema may list several types.
        ({"guided_json": {"type": ["integer", "null"]}}, r"null|-?\d+"),
    ],
    ids=["regex", "types"],
)
async def test_what_compiles_is_answered(
    constraint: dict[str, Any], words: str, answered: Answered
) -> None:
    answer = await answered("Hi", **constraint, max_tokens=9)
    assert re.fullmatch(words, answer.text)
