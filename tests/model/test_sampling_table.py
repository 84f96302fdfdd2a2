"""Every sampling parameter of docs/reference/jobs.md: its default, effect and refused values."""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import ROOT
from support.releases import of_the_pinned
from support.tables.sampling import BEAM, COUNT, FIVE, RANDOM, ROWS, SWITCHED_OFF, Answer

from worker.engine.generation.sampling import KNOWN
from worker.job.structured.spelling import GUIDED, GUIDED_OBJECTS

Ask = Callable[..., Awaitable[list[Any]]]
Answered = Callable[..., Awaitable[Answer]]

COUNTED = "one, two, three, four, five, six, seven, eight, nine, ten"
END = 3  # the token that ends a turn, a special one


@pytest.fixture
def answered(ask: Ask) -> Answered:
    async def answered(prompt: str, **params: Any) -> Answer:
        shown = {"prompt": prompt, "apply_chat_template": prompt == COUNT}
        (whole,) = await ask(**shown, sampling_params=params, return_token_ids=True)
        assert "error" not in whole, whole
        return Answer(whole)

    return answered


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.default is not None])
async def test_the_documented_default_is_what_holds_without_it(
    name: str, answered: Answered
) -> None:
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
    base = {key: value_ for key, value_ in ROWS[name].base.items() if key != name}
    error = await refusal(ask, **base, **{name: value})
    assert error["code"] == 400
    assert name in f"{error['param']} {error['message']}" or "rammar" in error["message"]


@pytest.mark.parametrize("name", SWITCHED_OFF)
async def test_parameters_that_need_a_setting_are_refused_without_it(name: str, ask: Ask) -> None:
    error = await refusal(ask, **{name: SWITCHED_OFF[name]})
    assert (error["code"], name in error["message"]) == (400, True)


@of_the_pinned
def test_every_parameter_has_its_row_and_every_row_is_documented() -> None:
    assert ROWS.keys() | SWITCHED_OFF.keys() == KNOWN - GUIDED - GUIDED_OBJECTS | {
        "structured_outputs"
    }
    text = (ROOT / "docs" / "reference" / "jobs.md").read_text()
    section = text.split("### Sampling parameters")[1].split("\n### ")[0]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.+?) \|", section, re.M))))
    assert documented == KNOWN - GUIDED_OBJECTS | {"structured_outputs"}


async def test_best_of_returns_the_likeliest_of_that_many(answered: Answered) -> None:
    params = {"seed": 5, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    every = await answered("Once", **params, n=8)
    best = await answered("Once", **params, n=3, best_of=8)
    ranked = sorted(zip(every.likelihoods, every.texts, strict=True), reverse=True)
    assert best.texts == [text for _, text in ranked[:3]]
    assert best.whole["usage"]["output"] == 36


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
        assert (
            "".join(position["token"] for position in choice["logprobs"][-3:])
            in choice["tokens"][0]
        )


async def test_a_length_penalty_ranks_by_likelihood_a_token(answered: Answered) -> None:
    short = await answered("Hello", **BEAM, length_penalty=-5.0)
    long = await answered("Hello", **BEAM, length_penalty=5.0)
    assert max(len(choice["token_ids"]) for choice in short.choices) < min(
        len(choice["token_ids"]) for choice in long.choices
    )


@pytest.mark.parametrize("only", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
async def test_parameters_that_leave_only_the_likeliest_token_are_greedy(
    only: dict[str, Any], answered: Answered
) -> None:
    greedy = await answered("Once", **RANDOM, temperature=0)
    assert (await answered("Once", **RANDOM, **only)).text == greedy.text


async def test_a_higher_temperature_leads_to_less_likely_texts(answered: Answered) -> None:
    params = {**RANDOM, "n": 8, "logprobs": 0}
    cool, hot = [await answered("Once", **params, temperature=value) for value in (0.3, 1.9)]
    assert max(hot.likelihoods) < min(cool.likelihoods)


async def test_a_special_stop_token_is_not_part_of_the_text(answered: Answered) -> None:
    answer = await answered(COUNT, temperature=0, max_tokens=40, stop_token_ids=[END])
    assert (answer.text, answer.reason) == (COUNTED, "stop")


async def test_with_stop_strings_the_text_ends_before_a_stop_token(answered: Answered) -> None:
    answer = await answered(COUNT, temperature=0, stop_token_ids=[FIVE], stop=["zzz"])
    assert (answer.text, answer.choices[0]["stop_reason"]) == ("one, two, three, four,", FIVE)


@pytest.mark.parametrize(
    "params",
    [
        {"best_of": 1, "n": 2},
        {"length_penalty": 2.0},
        {"early_stopping": "never"},
        *(
            {"use_beam_search": True, "best_of": 2, key: value}
            for key, value in (
                ("top_p", 0.5),
                ("stop", ["a"]),
                ("seed", 1),
                ("temperature", 0.7),
                ("min_tokens", 2),
                ("structured_outputs", {"regex": "a"}),
            )
        ),
        {"use_beam_search": True, "best_of": 11},
        {"n": 2, "temperature": 0},
        {"best_of": 2, "temperature": 0},
    ],
)  # fmt: skip - one line a case
async def test_combinations_without_effect_are_refused(params: dict[str, Any], ask: Ask) -> None:
    error = await refusal(ask, **params)
    assert error["code"] == 400
    assert error["param"] in params


@pytest.mark.parametrize("params", [{"n": 2, "best_of": 4}, {**BEAM, "n": 2}])
async def test_choices_that_are_ranked_come_in_one_yield_though_streamed(
    params: dict[str, Any], ask: Ask
) -> None:
    sampling_params = {"max_tokens": 12, **params}
    (whole,) = await ask(prompt="Once", sampling_params=sampling_params, stream=True)
    assert [len(choice["tokens"]) for choice in whole["choices"]] == [1, 1]
    assert all(choice["finish_reason"] for choice in whole["choices"])


async def refusal(ask: Ask, **params: Any) -> dict[str, Any]:
    (failed,) = await ask(prompt="Once", sampling_params=params)
    error: dict[str, Any] = json.loads(failed["error"])["error"]
    return error
