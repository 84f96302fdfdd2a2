"""Tests of each sampling parameter in docs/reference/jobs.md: default, effect, refused values."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from model.conftest import Ask
from support import ROOT
from support.engine.scripted import CHAT, failure
from support.releases import needs_pinned_vllm, needs_vllm
from support.tables.sampling import COUNT, FIVE, ROWS, SWITCHED_OFF, Answer

from worker.engine.run.sampling import KNOWN_KEYS
from worker.limits.parameters import GUIDED_KEYS, GUIDED_OBJECTS

GenerateAnswer = Callable[..., Awaitable[Answer]]

END = 3  # the token that ends a turn


@pytest.fixture
def generate_answer(ask: Ask) -> GenerateAnswer:
    async def generate_answer(prompt: str, **params: Any) -> Answer:
        form = {"prompt": prompt, "apply_chat_template": prompt == COUNT}
        (whole,) = await ask(**form, sampling_params=params, return_token_ids=True)
        assert "error" not in whole, whole
        return Answer(whole)

    return generate_answer


async def refusal(ask: Ask, **params: Any) -> dict[str, Any]:
    return failure(await ask(prompt="Once", sampling_params=params))


# Parameters of many requests. The others are tested at night.
COMMON = {
    *("ignore_eos", "logit_bias", "logprobs", "max_tokens", "min_tokens", "n", "seed", "stop"),
    *("stop_token_ids", "structured_outputs", "temperature", "top_k", "top_p"),
}


# Another release of vLLM may lack some parameters.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in COMMON else [pytest.mark.slow])
        for name in sorted(ROWS.keys() & KNOWN_KEYS)
    ],
)
async def test_a_parameter_has_the_documented_default_and_effect(
    name: str, generate_answer: GenerateAnswer
) -> None:
    row = ROWS[name]
    without = await generate_answer(row.prompt, **row.base)
    if row.default is not None:
        default = await generate_answer(row.prompt, **row.base, **{name: row.default})
        assert default.whole == without.whole
    changed = await generate_answer(row.prompt, **row.base, **{name: row.value})
    assert row.effect(changed, without), (changed.whole, without.whole)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, row in ROWS.items() for value in row.refused_values]
)
async def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any, ask: Ask) -> None:
    error = await refusal(ask, **{**ROWS[name].base, name: value})
    assert error["code"] == 400
    assert name in f"{error['param']} {error['message']}" or "rammar" in error["message"]


@pytest.mark.parametrize("name", SWITCHED_OFF)
async def test_parameters_that_need_a_setting_are_refused_without_it(name: str, ask: Ask) -> None:
    error = await refusal(ask, **{name: SWITCHED_OFF[name]})
    assert (error["code"], name in error["message"]) == (400, True)


@needs_pinned_vllm
def test_every_parameter_is_tested_and_documented() -> None:
    known = KNOWN_KEYS - GUIDED_OBJECTS | {"structured_outputs"}
    assert ROWS.keys() | SWITCHED_OFF.keys() == known - GUIDED_KEYS
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


async def test_with_stop_strings_the_text_ends_before_a_stop_token(
    generate_answer: GenerateAnswer,
) -> None:
    answer = await generate_answer(COUNT, temperature=0, stop_token_ids=[FIVE], stop=["zzz"])
    assert (answer.text, answer.choices[0]["stop_reason"]) == ("one, two, three, four,", FIVE)


async def test_best_of_returns_the_likeliest_of_all_samples(
    generate_answer: GenerateAnswer,
) -> None:
    params = {"seed": 5, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    every = await generate_answer("Once", **params, n=8)
    best = await generate_answer("Once", **params, n=3, best_of=8)
    ranked = sorted(zip(every.likelihoods, every.texts, strict=True), reverse=True)
    assert best.texts == [text for _, text in ranked[:3]]
    assert best.whole["usage"]["output"] == 36


async def test_best_of_works_with_log_probabilities_of_selected_tokens(
    generate_answer: GenerateAnswer,
) -> None:
    params = {"best_of": 3, "logprob_token_ids": [5, 6], "max_tokens": 4, "ignore_eos": True}
    assert len((await generate_answer("Hello", **params)).choices[0]["logprobs"]) == 4


async def test_beam_search_finds_likelier_texts_than_greedy_sampling_and_ranks_them(
    generate_answer: GenerateAnswer,
) -> None:
    params = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1}
    greedy = await generate_answer("Once", **params, temperature=0)
    beam = await generate_answer("Once", **params, use_beam_search=True, n=2, best_of=4)
    assert len(beam.choices) == 2
    assert beam.likelihoods == sorted(beam.likelihoods, reverse=True)
    assert beam.likelihoods[0] >= greedy.likelihoods[0]
    for choice in beam.choices:
        assert [position["id"] for position in choice["logprobs"]] == choice["token_ids"]
        assert all(1 <= len(position["top"]) <= 2 for position in choice["logprobs"])
        last = "".join(position["token"] for position in choice["logprobs"][-3:])
        assert last in choice["tokens"][0]


async def test_a_beam_ends_at_the_same_tokens_as_sampling(generate_answer: GenerateAnswer) -> None:
    # The demo model has two end-of-text tokens, and vLLM's beam search knows only one of them.
    ends = {1, END}
    answer = await generate_answer("Hello", use_beam_search=True, n=3, max_tokens=80)
    for choice in answer.choices:
        assert not ends & set(choice["token_ids"][:-1])
        assert choice["finish_reason"] == ("stop" if len(choice["token_ids"]) < 80 else "length")
    assert any(choice["stop_reason"] == 1 for choice in answer.choices)


async def test_a_beam_ends_at_the_end_of_the_context(ask: Ask) -> None:
    params = {"use_beam_search": True, "n": 2, "max_tokens": 50, "ignore_eos": True}
    (whole,) = await ask(prompt=[5] * 1018, sampling_params=params, return_token_ids=True)
    # The context has 1,024 tokens.
    assert [len(choice["token_ids"]) for choice in whole["choices"]] == [6, 6]


# Structured outputs:

ENDLESS = "root ::= a\na ::= b\nb ::= a"
RESPONSES_BODY = {"input": "Hi", "structured_outputs": {"grammar": ENDLESS}}
# Constraints that xgrammar cannot enforce.
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TWO_BRANCHES = {"allOf": [{"type": "string"}, {"enum": ["yes", "no"]}]}
CHECKS_BRANCHES = needs_vllm("0.32", "vLLM let any JSON pass for it")


def chat(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": form}
    return {"openai_route": CHAT, "openai_input": body}


@pytest.mark.parametrize(
    "schema",
    [UNIQUE, pytest.param(TWO_BRANCHES, marks=CHECKS_BRANCHES)],
    ids=["unique", "branches"],
)
async def test_a_schema_that_xgrammar_does_not_support_is_refused_each_time(
    schema: dict[str, Any], ask: Ask
) -> None:
    for _ in range(2):
        assert failure(await ask(**chat(schema)))["code"] == 400


@pytest.mark.parametrize(
    "job",
    [
        {"prompt": "Hi", "sampling_params": {"guided_grammar": ENDLESS}},
        {"prompt": "Hi", "sampling_params": {"guided_json": {"$ref": "#"}}, "stream": True},
        chat({"$ref": "#"}),
        {"openai_route": "/v1/responses", "openai_input": {**RESPONSES_BODY, "stream": True}},
    ],
    ids=["grammar", "schema, streamed", "chat", "responses, streamed"],
)
async def test_a_constraint_that_nothing_satisfies_is_a_mistake_of_the_caller(
    job: dict[str, Any], ask: Ask
) -> None:
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
async def test_an_answer_satisfies_its_constraint(
    constraint: dict[str, Any], words: str, generate_answer: GenerateAnswer
) -> None:
    answer = await generate_answer("Hi", **constraint, max_tokens=9)
    assert re.fullmatch(words, answer.text)
