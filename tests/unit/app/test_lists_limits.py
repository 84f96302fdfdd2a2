"""Results of a list that are too large for a yield, and items that fail."""

import asyncio
import json
from itertools import accumulate
from typing import Any

import pytest
from support.engine.answers import (
    LIMIT,
    Scripts,
    answered,
    every_form,
    job,
    refused,
    results_of,
    sizes,
    texts,
)
from support.engine.scripted import HANG, Step, tokens, until, worker, yields_of
from support.engine.yields import failure

from worker.errors import EngineBusy, EngineDead, RefusedByEngine
from worker.job import RawJob


async def listed(*prompts: Any, stream: bool = False, **scripts: Any) -> list[Any]:
    """Return the yields of a list whose prompts have scripts."""
    with Scripts(**scripts) as engine:
        yields = await yields_of(engine, {"prompts": list(prompts), "stream": stream})
        assert await until(lambda: not engine.generating)
    return yields


# Larger than a yield:


@pytest.mark.parametrize("unit", ["a", "é", '"', "\n", "😀"])
async def test_outputs_that_do_not_fit_one_yield_go_on_in_the_next(unit: str) -> None:
    share = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
    long = unit * (300_000 // share)
    yields = await listed(*["long"] * 8, "Hi", long=tokens(long))
    assert [len(chunk["outputs"]) for chunk in yields] == [3, 3, 3]
    assert [chunk.get("index") for chunk in yields] == [None, 3, 6]
    assert max(sizes(yields)) < LIMIT
    assert texts(results_of(yields, stream=False)) == [long] * 8 + ["Hi"]


async def test_many_small_outputs_stay_below_the_limit_too() -> None:
    count = 8_000
    yields = await answered({"prompts": ["Hi"] * count}, *tokens("é"))
    assert max(sizes(yields)) < LIMIT
    ends = list(accumulate(len(chunk["outputs"]) for chunk in yields))
    assert [chunk.get("index", 0) for chunk in yields] == [0, *ends[:-1]]
    assert (ends[-1], len(ends)) == (count, 2)


async def test_the_first_outputs_go_out_while_the_others_are_still_generated() -> None:
    with Scripts(long=tokens("a" * 600_000), slow=[HANG]) as engine:
        generator = worker(engine).handle(job("long", "long", "slow"))
        async with asyncio.timeout(60):
            first = await anext(generator)
        await generator.aclose()
    assert "index" not in first
    assert texts(first["outputs"]) == ["a" * 600_000]


@every_form
@pytest.mark.parametrize("size", [900_000, 940_000])
async def test_a_result_that_just_fits_a_yield_has_one_of_its_own(stream: bool, size: int) -> None:
    yields = await listed("long", "long", stream=stream, long=tokens("a" * size))
    assert len(yields) == 2
    assert texts(results_of(yields, stream=stream)) == ["a" * size] * 2
    assert max(sizes(yields)) < LIMIT


# Failures:


@every_form
@pytest.mark.parametrize(
    ("step", "error"),
    [
        (RefusedByEngine("too long", status=400, param="prompt"), ("too long", 400, False)),
        (RefusedByEngine("no such model", status=404), ("no such model", 404, False)),
        (EngineBusy("full"), ("full", 503, True)),
        # As the SDK can send it.
        (RefusedByEngine("no \ud83d", status=400, param="\ud83d"), ("no ?", 400, False)),
        (tokens("a" * LIMIT)[0], ("This result has 1,000,", 413, False)),
    ],
    ids=["refused", "unknown", "busy", "half-a-character", "too-large"],
)
async def test_an_item_that_fails_has_an_error_in_its_place(
    step: Step, error: tuple[str, int, bool], stream: bool
) -> None:
    yields = await listed("Hi", "wrong", "Ho", stream=stream, wrong=[step])
    assert max(sizes(yields)) < LIMIT
    one, wrong, other = results_of(yields, stream=stream)
    assert texts([one, other]) == ["Hi", "Ho"]
    assert list(wrong) == ["error"]
    message, *rest = error
    assert wrong["error"]["message"].startswith(message)
    assert [wrong["error"]["code"], wrong["error"]["retryable"]] == rest


async def test_an_item_that_fails_halfway_has_only_the_error() -> None:
    script = [*tokens("a", "b", finish=None), RefusedByEngine("no", status=400)]
    ((wrong, right),) = [chunk["outputs"] for chunk in await listed("wrong", "Hi", wrong=script)]
    assert list(wrong) == ["error"]
    assert texts([right]) == ["Hi"]


@every_form
async def test_what_is_wrong_with_an_item_never_reaches_the_engine(stream: bool) -> None:
    payload = {"prompts": ["Hi", 7, "Ho"], "sampling_params": [{}, {}, {"n": 0}], "stream": stream}
    with Scripts() as engine:
        yields = await yields_of(engine, payload)
    right, *wrong = results_of(yields, stream=stream)
    assert texts([right]) == ["Hi"]
    assert [(list(item), item["error"]["code"], item["error"]["param"]) for item in wrong] == [
        (["error"], 400, "prompt"),
        (["error"], 400, "n"),
    ]
    assert [asked.prompt for asked in engine.asked if isinstance(asked, RawJob)] == ["Hi"]


async def test_what_is_wrong_for_all_fails_the_job() -> None:
    error = await refused({"prompts": ["Hi", "Ho"], "sampling_params": {"n": 0}})
    assert (error["code"], error["param"], error["request_id"]) == (400, "n", "job-1")


@every_form
@pytest.mark.parametrize("prompts", [("last", "slow", "slow"), ("slow", "slow", "last")])
async def test_an_engine_that_dies_fails_the_job(prompts: tuple[str, ...], stream: bool) -> None:
    yields = await listed(*prompts, stream=stream, slow=[HANG], last=[0.02, EngineDead()])
    assert len(yields) == 1
    error = failure(yields)
    assert (error["code"], error["retryable"], error["request_id"]) == (503, True, "job-1")


async def test_what_was_ready_before_the_engine_died_goes_out_before_the_error() -> None:
    yields = await listed("last", "Hi", "Ho", stream=True, last=[0.1, EngineDead()])
    assert sorted(chunk["index"] for chunk in yields[:-1]) == [1, 2]
    assert failure(yields)["code"] == 503
