"""Details of answers in the worker's own form (log probabilities, ids), and their chunks."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from support.engine.answers import Details
from support.engine.scripted import ScriptedEngine, failure, tokens, yields_of

from worker.engine import Delta
from worker.job import RawJob

EXACT = {"max_batch_delay_ms": 0}  # chunks of the formula's sizes, however slow the machine
LIMIT = 1_000_000
KEYS = ("logprobs", "token_ids")

every_form = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def raw(*, stream: bool, **params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "stream": stream, "sampling_params": params, **EXACT}


def position(place: int) -> dict[str, Any]:
    chosen = {"token": f"t{place}", "id": place, "logprob": -0.5}
    return {**chosen, "top": [chosen]}


def streamed(count: int, index: int = 0) -> list[Delta]:
    """Return one delta a token with its details; the first also has the prompt's."""
    return [
        Delta(
            index,
            f"t{place}",
            1,
            3,
            "stop" if place == count - 1 else None,
            logprobs=[position(place)],
            token_ids=[place],
            prompt_logprobs=None if place or index else [None, position(7), position(8)],
        )
        for place in range(count)
    ]


def gathered(yields: Iterable[dict[str, Any]], key: str, index: int = 0) -> list[Any]:
    """Return the values of one key of one choice, from all yields."""
    return [item for chunk in yields for item in chunk["choices"][index].get(key, [])]


def prompt_logprobs(yields: Iterable[dict[str, Any]]) -> list[Any]:
    return [item for chunk in yields for item in chunk.get("prompt_logprobs", [])]


def sizes(yields: Iterable[Any]) -> list[int]:
    return [len(json.dumps(chunk, ensure_ascii=False).encode()) for chunk in yields]


def ends(yields: Iterable[dict[str, Any]], index: int = 0) -> list[tuple[Any, Any]]:
    """Return how a choice ended, whichever yields have it."""
    choices = [chunk["choices"][index] for chunk in yields]
    return [
        (choice["finish_reason"], choice["stop_reason"])
        for choice in choices
        if {"finish_reason", "stop_reason"} & choice.keys()
    ]


# Details and tokens match:


async def test_details_come_in_the_yield_of_their_tokens() -> None:
    with Details(*streamed(6)) as engine:
        yields = await yields_of(engine, raw(stream=True))
    choices = [chunk["choices"][0] for chunk in yields]
    assert [choice["tokens"] for choice in choices] == [["t0"], ["t1", "t2", "t3"], ["t4", "t5"]]
    assert [choice["token_ids"] for choice in choices] == [[0], [1, 2, 3], [4, 5]]
    assert [[entry["token"] for entry in choice["logprobs"]] for choice in choices] == [
        choice["tokens"] for choice in choices
    ]
    assert gathered(yields, "logprobs") == [position(place) for place in range(6)]


async def test_a_token_without_text_has_its_details_too() -> None:
    script = [
        replace(delta, text="" if place == 1 else "x") for place, delta in enumerate(streamed(4))
    ]
    with Details(*script) as engine:
        yields = await yields_of(engine, raw(stream=True))
    assert gathered(yields, "tokens") == ["x", "", "x", "x"]
    assert gathered(yields, "token_ids") == [0, 1, 2, 3]


async def test_each_choice_has_details_of_its_own() -> None:
    one, other = streamed(4), streamed(2, index=1)
    with Details(one[0], other[0], *one[1:], other[1]) as engine:
        yields = await yields_of(engine, raw(stream=True, n=2))
    for index, count in ((0, 4), (1, 2)):
        assert gathered(yields, "token_ids", index) == list(range(count))
        assert gathered(yields, "logprobs", index) == [position(place) for place in range(count)]
    for chunk in yields:
        for choice in chunk["choices"]:
            assert len(choice["tokens"]) == len(choice.get("token_ids", []))


async def test_the_prompts_details_come_once_and_first_and_belong_to_no_choice() -> None:
    with Details(*streamed(6)) as engine:
        yields = await yields_of(engine, raw(stream=True))
    expected = [None, position(7), position(8)]
    assert [chunk.get("prompt_logprobs") for chunk in yields] == [expected, None, None]
    assert gathered(yields, "prompt_logprobs") == []


async def test_an_answer_that_is_not_streamed_holds_all_its_details() -> None:
    whole = Delta(
        0,
        "t0t1",
        2,
        3,
        "stop",
        "###",
        logprobs=[position(0), position(1)],
        token_ids=[0, 1],
        prompt_logprobs=[None, position(7)],
    )
    with Details(whole) as engine:
        (chunk,) = await yields_of(engine, raw(stream=False))
    assert chunk == {
        "choices": [
            {
                "tokens": ["t0t1"],
                "logprobs": [position(0), position(1)],
                "token_ids": [0, 1],
                "finish_reason": "stop",
                "stop_reason": "###",
            }
        ],
        "prompt_logprobs": [None, position(7)],
        "usage": {"input": 3, "output": 2},
        "request_id": "job-1",
    }


async def test_an_item_of_a_list_holds_its_details_too() -> None:
    whole = Delta(0, "a", 1, 3, "stop", None, [position(0)], token_ids=[0], prompt_logprobs=[None])
    with Details(whole) as engine:
        (chunk,) = await yields_of(engine, {"prompts": ["Hi"]})
    (output,) = chunk["outputs"]
    assert (output["choices"][0]["logprobs"], output["choices"][0]["token_ids"]) == (
        [position(0)],
        [0],
    )
    assert output["prompt_logprobs"] == [None]


@every_form
async def test_details_that_are_absent_have_no_key(stream: bool) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        (chunk,) = await yields_of(engine, raw(stream=stream))
    assert chunk.keys() == {"choices", "usage", "request_id"}
    assert chunk["choices"][0].keys() == {"tokens", "finish_reason", "stop_reason"}


@pytest.mark.parametrize("choices", [1, 2])
async def test_the_request_id_comes_in_the_last_yield_only(choices: int) -> None:
    script = [delta for index in range(choices) for delta in streamed(6, index)]
    with Details(*script) as engine:
        yields = await yields_of(engine, raw(stream=True, n=choices))
    assert len(yields) > 2
    assert [chunk.get("request_id") for chunk in yields] == [None] * (len(yields) - 1) + ["job-1"]


# Larger than a yield:


@pytest.mark.parametrize("unit", ["a", "é", '"', "😀", "\u2028"])
async def test_a_text_that_exceeds_a_yield_goes_on_in_the_next(unit: str) -> None:
    share = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
    text = "Hi " + unit * (3 * LIMIT // share) + " end"
    with Details(Delta(0, text, 1000, 3, "length", 7)) as engine:
        yields = await yields_of(engine, raw(stream=True))
    assert len(yields) > 3
    assert max(sizes(yields)) < LIMIT
    assert "".join(gathered(yields, "tokens")) == text
    assert [chunk["usage"]["output"] for chunk in yields] == [0] * (len(yields) - 1) + [1000]
    assert ends(yields) == [("length", 7)]
    assert "finish_reason" in yields[-1]["choices"][0]
    assert [chunk.get("request_id") for chunk in yields] == [None] * (len(yields) - 1) + ["job-1"]


@pytest.mark.parametrize("count", [1001, 20_000])
async def test_log_probabilities_that_exceed_a_yield_stay_in_step_with_the_ids(count: int) -> None:
    token = "é" * (1_500_000 // count)
    logprobs = [{"token": token, "id": place, "logprob": -0.5} for place in range(count)]
    delta = Delta(0, "x" * count, count, 3, "stop", None, logprobs, token_ids=list(range(count)))
    with Details(delta) as engine:
        yields = await yields_of(engine, raw(stream=True))
    assert len(yields) > 3
    assert max(sizes(yields)) < LIMIT
    assert gathered(yields, "logprobs") == logprobs
    assert "".join(gathered(yields, "tokens")) == "x" * count
    for chunk in yields:
        choice = chunk["choices"][0]
        assert [item["id"] for item in choice["logprobs"]] == choice["token_ids"]
    assert yields[-1]["usage"] == {"input": 3, "output": count}
    assert ends(yields) == [("stop", None)]


async def test_log_probabilities_of_a_long_prompt_come_over_several_yields() -> None:
    of_prompt = [None, *(position(place) for place in range(40_000))]
    first = Delta(0, "Hello", 1, 40_001, None, None, [position(0)], [0], of_prompt)
    last = Delta(0, " you", 1, 40_001, "stop", None, [position(1)], [1])
    with Details(first, last) as engine:
        yields = await yields_of(engine, raw(stream=True))
    assert len(yields) > 3
    assert max(sizes(yields)) < LIMIT
    assert prompt_logprobs(yields) == of_prompt
    assert "".join(gathered(yields, "tokens")) == "Hello you"
    assert gathered(yields, "logprobs") == [position(0), position(1)]
    assert gathered(yields, "token_ids") == [0, 1]
    assert yields[-1]["usage"] == {"input": 40_001, "output": 2}
    assert ends(yields) == [("stop", None)]


async def test_what_is_split_of_one_choice_leaves_the_others_whole() -> None:
    large = Delta(0, "a" * 2 * LIMIT, 1, 3, "length", None)
    small = Delta(1, "b", 1, 3, "stop", None)
    for script in ([large, small], [small, large]):
        with Details(*script) as engine:
            yields = await yields_of(engine, raw(stream=True, n=2))
        assert max(sizes(yields)) < LIMIT
        assert "".join(gathered(yields, "tokens", 0)) == large.text
        assert gathered(yields, "tokens", 1) == ["b"]
        assert (ends(yields, 0), ends(yields, 1)) == ([("length", None)], [("stop", None)])
        assert yields[-1]["usage"]["output"] == 2


async def test_details_of_a_token_that_exceed_a_yield_alone_fail_the_job() -> None:
    logprobs = [{"token": "a" * LIMIT, "logprob": -0.5}]
    with Details(Delta(0, "a", 1, 3, "stop", None, logprobs)) as engine:
        yields = await yields_of(engine, raw(stream=True))
    assert failure(yields)["code"] == 413


async def test_an_answer_that_is_not_streamed_is_never_split() -> None:
    with Details(Delta(0, "a" * LIMIT, 1, 3, "stop", None)) as engine:
        yields = await yields_of(engine, raw(stream=False))
    assert len(yields) == 1
    assert failure(yields)["code"] == 413


# Ranked answers:


@every_form
@pytest.mark.parametrize(
    "params",
    [
        {"best_of": 2},
        {"n": 2, "best_of": 3},
        {"use_beam_search": True},
        {"n": 2, "best_of": 2, "use_beam_search": True},
    ],
    ids=str,
)
async def test_choices_that_are_compared_first_are_one_yield(
    params: dict[str, Any], stream: bool
) -> None:
    count = params.get("n", 1)
    script = [Delta(index, f"whole {index}", 40, 3, "stop") for index in range(count)]
    with Details(*script) as engine:
        yields = await yields_of(engine, raw(stream=stream, **params))
    end = {"finish_reason": "stop", "stop_reason": None}
    assert yields == [
        {
            "choices": [{"tokens": [f"whole {index}"], **end} for index in range(count)],
            "usage": {"input": 3, "output": 40 * count},
            "request_id": "job-1",
        }
    ]
    (asked,) = engine.asked
    assert isinstance(asked, RawJob)
    assert asked.streamed is False
