"""Log probabilities and token ids of raw responses, and responses larger than a yield."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from support.engine.answers import EXACT, LIMIT, run_detailed_job, sizes
from support.engine.scripted import failure, raw_job

from worker.engine import Delta

STREAM = raw_job(stream=True, **EXACT)
TWO = raw_job(stream=True, sampling_params={"n": 2}, **EXACT)


def logprobs_at(place: int) -> dict[str, Any]:
    chosen = {"token": f"t{place}", "id": place, "logprob": -0.5}
    return {**chosen, "top": [chosen]}


def logprobs_of(count: int) -> list[dict[str, Any]]:
    return [logprobs_at(place) for place in range(count)]


def make_deltas(count: int, index: int = 0) -> list[Delta]:
    """Return one delta per token with its details; the first delta also has the prompt's."""
    deltas = [
        Delta(index, f"t{place}", 1, 3, logprobs=[logprobs_at(place)], token_ids=[place])
        for place in range(count)
    ]
    prompt_logprobs = None if index else [None, logprobs_at(7), logprobs_at(8)]
    deltas[0] = replace(deltas[0], prompt_logprobs=prompt_logprobs)
    deltas[-1] = replace(deltas[-1], finish_reason="stop")
    return deltas


def collect_values(yields: Iterable[dict[str, Any]], key: str, index: int = 0) -> list[Any]:
    """Return the values of one key of one choice, from all yields."""
    return [item for chunk in yields for item in chunk["choices"][index].get(key, [])]


def find_ends(yields: Iterable[dict[str, Any]], index: int = 0) -> list[tuple[Any, Any]]:
    """Return the finish and stop reasons of a choice from all yields that have them."""
    choices = [chunk["choices"][index] for chunk in yields]
    keys = ("finish_reason", "stop_reason")
    return [tuple(map(choice.get, keys)) for choice in choices if {*keys} & choice.keys()]


# Details and their tokens:


async def test_details_are_in_the_yield_of_their_tokens() -> None:
    yields = await run_detailed_job(STREAM, *make_deltas(6))
    choices = [chunk["choices"][0] for chunk in yields]
    assert [choice["tokens"] for choice in choices] == [["t0"], ["t1", "t2", "t3"], ["t4", "t5"]]
    assert [choice["token_ids"] for choice in choices] == [[0], [1, 2, 3], [4, 5]]
    assert [choice["logprobs"] for choice in choices] == [
        [logprobs_at(place) for place in choice["token_ids"]] for choice in choices
    ]
    # The prompt's log probabilities come first, and belong to no choice.
    prompt_logprobs = [None, logprobs_at(7), logprobs_at(8)]
    assert [chunk.get("prompt_logprobs") for chunk in yields] == [prompt_logprobs, None, None]
    assert collect_values(yields, "prompt_logprobs") == []


async def test_each_choice_has_its_own_details() -> None:
    one, other = make_deltas(4), make_deltas(2, index=1)
    yields = await run_detailed_job(TWO, one[0], other[0], *one[1:], other[1])
    for index, count in ((0, 4), (1, 2)):
        assert collect_values(yields, "token_ids", index) == list(range(count))
        assert collect_values(yields, "logprobs", index) == logprobs_of(count)
    for chunk in yields:
        for choice in chunk["choices"]:
            assert len(choice["tokens"]) == len(choice.get("token_ids", []))


WHOLE_DELTA = Delta(0, "t0t1", 2, 3, "stop", "###", logprobs_of(2), [0, 1], [None, logprobs_at(7)])
RESPONSE = {
    "choices": [
        {
            "tokens": ["t0t1"],
            "logprobs": logprobs_of(2),
            "token_ids": [0, 1],
            "finish_reason": "stop",
            "stop_reason": "###",
        }
    ],
    "prompt_logprobs": [None, logprobs_at(7)],
    "usage": {"input": 3, "output": 2},
}


async def test_a_response_without_a_stream_and_an_item_of_a_list_have_all_details() -> None:
    assert await run_detailed_job(raw_job(stream=False), WHOLE_DELTA) == [
        {**RESPONSE, "request_id": "job-1"}
    ]
    item = {**RESPONSE, "request_id": "job-1-0"}
    assert await run_detailed_job({"prompts": ["Hi"]}, WHOLE_DELTA) == [{"outputs": [item]}]


# Responses larger than a yield:


@pytest.mark.parametrize("unit", ["a", '"', "😀"])
async def test_a_text_too_large_for_a_yield_continues_in_the_next_yields(unit: str) -> None:
    bytes_per_unit = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
    text = "Hi " + unit * (3 * LIMIT // bytes_per_unit) + " end"
    yields = await run_detailed_job(STREAM, Delta(0, text, 1000, 3, "length", 7))
    earlier = len(yields) - 1
    assert earlier > 2
    assert max(sizes(yields)) < LIMIT
    assert "".join(collect_values(yields, "tokens")) == text
    assert [chunk["usage"]["output"] for chunk in yields] == [0] * earlier + [1000]
    assert [chunk.get("request_id") for chunk in yields] == [None] * earlier + ["job-1"]
    assert find_ends(yields) == find_ends(yields[-1:]) == [("length", 7)]


async def test_log_probabilities_split_over_yields_stay_with_their_token_ids() -> None:
    count = 1001
    token = "é" * (1_500_000 // count)
    logprobs = [{"token": token, "id": place, "logprob": -0.5} for place in range(count)]
    delta = Delta(0, "x" * count, count, 3, "stop", None, logprobs, token_ids=list(range(count)))
    yields = await run_detailed_job(STREAM, delta)
    assert len(yields) > 3
    assert max(sizes(yields)) < LIMIT
    assert collect_values(yields, "logprobs") == logprobs
    assert "".join(collect_values(yields, "tokens")) == "x" * count
    for chunk in yields:
        choice = chunk["choices"][0]
        assert [item["id"] for item in choice["logprobs"]] == choice["token_ids"]
    assert yields[-1]["usage"] == {"input": 3, "output": count}
    assert find_ends(yields) == [("stop", None)]


async def test_log_probabilities_of_a_long_prompt_are_split_over_several_yields() -> None:
    prompt_logprobs = [None, *logprobs_of(15_000)]
    first = Delta(0, "Hello", 1, 15_001, None, None, [logprobs_at(0)], [0], prompt_logprobs)
    last = Delta(0, " you", 1, 15_001, "stop", None, [logprobs_at(1)], [1])
    yields = await run_detailed_job(STREAM, first, last)
    assert len(yields) > 1
    assert max(sizes(yields)) < LIMIT
    assert [
        item for chunk in yields for item in chunk.get("prompt_logprobs", [])
    ] == prompt_logprobs
    assert "".join(collect_values(yields, "tokens")) == "Hello you"
    assert collect_values(yields, "logprobs") == logprobs_of(2)
    assert collect_values(yields, "token_ids") == [0, 1]
    assert yields[-1]["usage"] == {"input": 15_001, "output": 2}
    assert find_ends(yields) == [("stop", None)]


@pytest.mark.parametrize("order", [1, -1])
async def test_splitting_one_choice_does_not_split_the_others(order: int) -> None:
    large = Delta(0, "a" * 2 * LIMIT, 1, 3, "length", None)
    small = Delta(1, "b", 1, 3, "stop", None)
    yields = await run_detailed_job(TWO, *[large, small][::order])
    assert max(sizes(yields)) < LIMIT
    assert "".join(collect_values(yields, "tokens", 0)) == large.text
    assert collect_values(yields, "tokens", 1) == ["b"]
    assert (find_ends(yields, 0), find_ends(yields, 1)) == ([("length", None)], [("stop", None)])
    assert yields[-1]["usage"]["output"] == 2


async def test_details_of_one_token_too_large_for_a_yield_fail_the_job() -> None:
    logprobs = [{"token": "a" * LIMIT, "logprob": -0.5}]
    yields = await run_detailed_job(STREAM, Delta(0, "a", 1, 3, "stop", None, logprobs))
    assert failure(yields)["code"] == 413
