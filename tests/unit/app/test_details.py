"""Details of raw answers (log probabilities, ids), and what exceeds one yield."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from support.engine.answers import EXACT, LIMIT, detailed, sizes
from support.engine.scripted import raw
from support.engine.yields import failure

from worker.engine import Delta

STREAM = raw(stream=True, **EXACT)
TWO = raw(stream=True, sampling_params={"n": 2}, **EXACT)


def position(place: int) -> dict[str, Any]:
    chosen = {"token": f"t{place}", "id": place, "logprob": -0.5}
    return {**chosen, "top": [chosen]}


def positions(count: int) -> list[dict[str, Any]]:
    return [position(place) for place in range(count)]


def streamed(count: int, index: int = 0) -> list[Delta]:
    """Return one delta a token with its details; the first also has the prompt's."""
    deltas = [
        Delta(index, f"t{place}", 1, 3, logprobs=[position(place)], token_ids=[place])
        for place in range(count)
    ]
    of_prompt = None if index else [None, position(7), position(8)]
    deltas[0] = replace(deltas[0], prompt_logprobs=of_prompt)
    deltas[-1] = replace(deltas[-1], finish_reason="stop")
    return deltas


def gathered(yields: Iterable[dict[str, Any]], key: str, index: int = 0) -> list[Any]:
    """Return the values of one key of one choice, from all yields."""
    return [item for chunk in yields for item in chunk["choices"][index].get(key, [])]


def ends(yields: Iterable[dict[str, Any]], index: int = 0) -> list[tuple[Any, Any]]:
    """Return how a choice ended, whichever yields have it."""
    choices = [chunk["choices"][index] for chunk in yields]
    keys = ("finish_reason", "stop_reason")
    return [tuple(map(choice.get, keys)) for choice in choices if {*keys} & choice.keys()]


# Details and tokens match:


async def test_details_come_in_the_yield_of_their_tokens() -> None:
    yields = await detailed(STREAM, *streamed(6))
    choices = [chunk["choices"][0] for chunk in yields]
    assert [choice["tokens"] for choice in choices] == [["t0"], ["t1", "t2", "t3"], ["t4", "t5"]]
    assert [choice["token_ids"] for choice in choices] == [[0], [1, 2, 3], [4, 5]]
    assert [choice["logprobs"] for choice in choices] == [
        [position(place) for place in choice["token_ids"]] for choice in choices
    ]
    # Those of the prompt come first, and belong to no choice.
    of_prompt = [None, position(7), position(8)]
    assert [chunk.get("prompt_logprobs") for chunk in yields] == [of_prompt, None, None]
    assert gathered(yields, "prompt_logprobs") == []


async def test_each_choice_has_details_of_its_own() -> None:
    one, other = streamed(4), streamed(2, index=1)
    yields = await detailed(TWO, one[0], other[0], *one[1:], other[1])
    for index, count in ((0, 4), (1, 2)):
        assert gathered(yields, "token_ids", index) == list(range(count))
        assert gathered(yields, "logprobs", index) == positions(count)
    for chunk in yields:
        for choice in chunk["choices"]:
            assert len(choice["tokens"]) == len(choice.get("token_ids", []))


WHOLE = Delta(0, "t0t1", 2, 3, "stop", "###", positions(2), [0, 1], [None, position(7)])
IN_FULL = {
    "choices": [
        {
            "tokens": ["t0t1"],
            "logprobs": positions(2),
            "token_ids": [0, 1],
            "finish_reason": "stop",
            "stop_reason": "###",
        }
    ],
    "prompt_logprobs": [None, position(7)],
    "usage": {"input": 3, "output": 2},
}


async def test_a_whole_answer_and_an_item_of_a_list_hold_all_their_details() -> None:
    assert await detailed(raw(stream=False), WHOLE) == [{**IN_FULL, "request_id": "job-1"}]
    item = {**IN_FULL, "request_id": "job-1-0"}
    assert await detailed({"prompts": ["Hi"]}, WHOLE) == [{"outputs": [item]}]


# Larger than a yield:


@pytest.mark.parametrize("unit", ["a", '"', "😀"])
async def test_a_text_that_exceeds_a_yield_goes_on_in_the_next(unit: str) -> None:
    share = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
    text = "Hi " + unit * (3 * LIMIT // share) + " end"
    yields = await detailed(STREAM, Delta(0, text, 1000, 3, "length", 7))
    before = len(yields) - 1
    assert before > 2
    assert max(sizes(yields)) < LIMIT
    assert "".join(gathered(yields, "tokens")) == text
    assert [chunk["usage"]["output"] for chunk in yields] == [0] * before + [1000]
    assert [chunk.get("request_id") for chunk in yields] == [None] * before + ["job-1"]
    assert ends(yields) == ends(yields[-1:]) == [("length", 7)]


async def test_log_probabilities_that_exceed_a_yield_stay_in_step_with_the_ids() -> None:
    count = 1001
    token = "é" * (1_500_000 // count)
    logprobs = [{"token": token, "id": place, "logprob": -0.5} for place in range(count)]
    delta = Delta(0, "x" * count, count, 3, "stop", None, logprobs, token_ids=list(range(count)))
    yields = await detailed(STREAM, delta)
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
    of_prompt = [None, *positions(30_000)]
    first = Delta(0, "Hello", 1, 30_001, None, None, [position(0)], [0], of_prompt)
    last = Delta(0, " you", 1, 30_001, "stop", None, [position(1)], [1])
    yields = await detailed(STREAM, first, last)
    assert len(yields) > 3
    assert max(sizes(yields)) < LIMIT
    assert [item for chunk in yields for item in chunk.get("prompt_logprobs", [])] == of_prompt
    assert "".join(gathered(yields, "tokens")) == "Hello you"
    assert gathered(yields, "logprobs") == positions(2)
    assert gathered(yields, "token_ids") == [0, 1]
    assert yields[-1]["usage"] == {"input": 30_001, "output": 2}
    assert ends(yields) == [("stop", None)]


@pytest.mark.parametrize("order", [1, -1])
async def test_what_is_split_of_one_choice_leaves_the_others_whole(order: int) -> None:
    large = Delta(0, "a" * 2 * LIMIT, 1, 3, "length", None)
    small = Delta(1, "b", 1, 3, "stop", None)
    yields = await detailed(TWO, *[large, small][::order])
    assert max(sizes(yields)) < LIMIT
    assert "".join(gathered(yields, "tokens", 0)) == large.text
    assert gathered(yields, "tokens", 1) == ["b"]
    assert (ends(yields, 0), ends(yields, 1)) == ([("length", None)], [("stop", None)])
    assert yields[-1]["usage"]["output"] == 2


async def test_details_of_a_token_that_exceed_a_yield_alone_fail_the_job() -> None:
    logprobs = [{"token": "a" * LIMIT, "logprob": -0.5}]
    yields = await detailed(STREAM, Delta(0, "a", 1, 3, "stop", None, logprobs))
    assert failure(yields)["code"] == 413
