"""Results of a list that are too large for a yield, and items that fail."""

import asyncio
import json
from typing import Any

import pytest
from support.engine.answers import LIMIT, Scripts, every_form, job, results_of, sizes, texts
from support.engine.scripted import HANG, ScriptedEngine, failure, tokens, until, worker, yields_of

from worker.errors import EngineBusy, EngineDead, RefusedByEngine
from worker.job import RawJob

# Larger than a yield:


@pytest.mark.parametrize("unit", ["a", "é", '"', "\n", "😀"])
async def test_outputs_that_do_not_fit_one_yield_go_on_in_the_next(unit: str) -> None:
    share = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
    long = unit * (300_000 // share)
    with Scripts(long=tokens(long)) as engine:
        yields = await yields_of(engine, {"prompts": ["long"] * 8 + ["Hi"]})
    assert [len(chunk["outputs"]) for chunk in yields] == [3, 3, 3]
    assert [chunk.get("index") for chunk in yields] == [None, 3, 6]
    assert max(sizes(yields)) < LIMIT
    assert texts(results_of(yields, stream=False)) == [long] * 8 + ["Hi"]


async def test_many_small_outputs_stay_below_the_limit_too() -> None:
    with ScriptedEngine(*tokens("é")) as engine:
        yields = await yields_of(engine, {"prompts": ["Hi"] * 10_000})
    assert 1 < len(yields) < 5
    assert max(sizes(yields)) < LIMIT
    parts = [(chunk.get("index", 0), len(chunk["outputs"])) for chunk in yields]
    assert [index for index, _ in parts] == [
        sum(count for _, count in parts[:place]) for place in range(len(parts))
    ]
    assert len(results_of(yields, stream=False)) == 10_000


async def test_the_first_outputs_go_out_while_the_others_are_still_generated() -> None:
    with Scripts(long=tokens("a" * 600_000), slow=[HANG]) as engine:
        generator = worker(engine).handle(job("long", "long", "slow"))
        async with asyncio.timeout(60):
            first = await anext(generator)
        await generator.aclose()
    assert "index" not in first
    assert texts(first["outputs"]) == ["a" * 600_000]


@every_form
async def test_a_result_that_fits_no_yield_is_an_error_in_its_place(stream: bool) -> None:
    with Scripts(long=tokens("a" * LIMIT)) as engine:
        yields = await yields_of(engine, {"prompts": ["Hi", "long", "Ho"], "stream": stream})
    one, wrong, other = results_of(yields, stream=stream)
    assert texts([one, other]) == ["Hi", "Ho"]
    assert list(wrong) == ["error"]
    assert (wrong["error"]["code"], wrong["error"]["retryable"]) == (413, False)
    assert max(sizes(yields)) < LIMIT


@every_form
@pytest.mark.parametrize("size", [900_000, 940_000])
async def test_a_result_that_just_fits_a_yield_has_one_of_its_own(stream: bool, size: int) -> None:
    with Scripts(long=tokens("a" * size)) as engine:
        yields = await yields_of(engine, {"prompts": ["long"] * 2, "stream": stream})
    assert len(yields) == 2
    assert texts(results_of(yields, stream=stream)) == ["a" * size] * 2
    assert max(sizes(yields)) < LIMIT


# Failures:


@every_form
@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (RefusedByEngine("too long", status=400, param="prompt"), 400, False),
        (RefusedByEngine("no such model", status=404, param="prompt"), 404, False),
        (EngineBusy("full", param="prompt"), 503, True),
    ],
)
async def test_an_item_that_the_engine_refuses_fails_in_its_place(
    error: EngineBusy | RefusedByEngine, code: int, retryable: bool, stream: bool
) -> None:
    with Scripts(wrong=[error]) as engine:
        yields = await yields_of(engine, {"prompts": ["Hi", "wrong", "Ho"], "stream": stream})
    one, wrong, other = results_of(yields, stream=stream)
    assert texts([one, other]) == ["Hi", "Ho"]
    assert list(wrong) == ["error"]
    body = wrong["error"]
    assert (body["message"], body["code"], body["param"], body["retryable"]) == (
        error.message,
        code,
        "prompt",
        retryable,
    )


async def test_an_item_that_fails_halfway_has_only_the_error() -> None:
    script = [*tokens("a", "b", finish=None), RefusedByEngine("no", status=400)]
    with Scripts(wrong=script) as engine:
        (chunk,) = await yields_of(engine, {"prompts": ["wrong", "Hi"]})
    assert list(chunk["outputs"][0]) == ["error"]
    assert texts(chunk["outputs"][1:]) == ["Hi"]


@every_form
async def test_what_is_wrong_with_an_item_stands_in_its_place_and_never_in_the_engine(
    stream: bool,
) -> None:
    payload = {
        "prompts": ["Hi", 7, "Ho"],
        "sampling_params": [{}, {}, {"n": 0}],
        "stream": stream,
    }
    with Scripts() as engine:
        yields = await yields_of(engine, payload)
    right, *wrong = results_of(yields, stream=stream)
    assert texts([right]) == ["Hi"]
    assert [(list(item), item["error"]["code"], item["error"]["param"]) for item in wrong] == [
        (["error"], 400, "prompt"),
        (["error"], 400, "n"),
    ]
    assert [asked.prompt for asked in engine.asked if isinstance(asked, RawJob)] == ["Hi"]


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"sampling_params": {"n": 0}}, "n"),
        ({"sampling_params": [{}]}, "sampling_params"),
        ({"prompt": "Hi"}, "prompt"),
    ],
)
async def test_what_is_wrong_for_all_fails_the_job(keys: dict[str, Any], param: str) -> None:
    with Scripts() as engine:
        yields = await yields_of(engine, {"prompts": ["Hi", "Ho"], **keys})
    assert len(yields) == 1
    error = failure(yields)
    assert (error["code"], error["param"], error["request_id"]) == (400, param, "job-1")
    assert engine.asked == []


@every_form
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_an_engine_that_dies_fails_the_whole_job(place: int, stream: bool) -> None:
    prompts = ["slow", "slow"]
    prompts.insert(place, "last")
    with Scripts(slow=[HANG], last=[0.02, EngineDead()]) as engine:
        yields = await yields_of(engine, {"prompts": prompts, "stream": stream})
        assert await until(lambda: not engine.generating)
    assert len(yields) == 1
    error = failure(yields)
    assert (error["code"], error["retryable"], error["request_id"]) == (503, True, "job-1")


async def test_what_was_ready_before_the_engine_died_goes_out_before_the_error() -> None:
    with Scripts(last=[0.1, EngineDead()]) as engine:
        yields = await yields_of(engine, {"prompts": ["last", "Hi", "Ho"], "stream": True})
    assert sorted(chunk["index"] for chunk in yields[:-1]) == [1, 2]
    assert failure(yields)["code"] == 503


@every_form
async def test_an_error_that_quotes_half_a_surrogate_pair_can_be_posted(stream: bool) -> None:
    refused = RefusedByEngine("no \ud83d", status=400, param="\ud83d")
    with Scripts(bad=[refused]) as engine:
        yields = await yields_of(engine, {"prompts": ["bad"], "stream": stream})
    assert sizes(yields)[0] > 0
    assert results_of(yields, stream=stream)[0]["error"]["message"] == "no ?"
