"""Lists of prompts in the worker: their yields, concurrent items, and items that fail."""

import asyncio
import json
from typing import Any

import pytest
from support.engine.answers import (
    LIMIT,
    PromptScriptsEngine,
    every_form,
    list_job,
    results_of,
    run_job,
    sizes,
    texts,
)
from support.engine.scripted import HANG, ScriptedEngine, Step, failure, tokens, worker, yields_of
from support.processes.background import poll_until

from worker.errors import EngineBusy, EngineDead, RefusedByEngine
from worker.job import RawJob

# Without a stream:


async def test_a_list_is_one_yield_with_the_outputs() -> None:
    with PromptScriptsEngine() as engine:
        yields = await yields_of(engine, {"prompts": ["Hi", "Ho"]})
    end = {"finish_reason": "stop", "stop_reason": None}
    assert yields == [
        {
            "outputs": [
                {
                    "choices": [{"tokens": [text], **end}],
                    "usage": {"input": 3, "output": 1},
                    "request_id": f"job-1-{place}",
                }
                for place, text in enumerate(["Hi", "Ho"])
            ]
        }
    ]


async def test_the_engine_knows_which_requests_are_items_of_a_list() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, {"prompt": "Hi"})
        assert engine.list_items == []
        await yields_of(engine, {"prompts": ["Hi", "Ho"]})
    assert engine.list_items == ["job-1-0", "job-1-1"]


async def test_outputs_are_in_the_order_of_the_prompts() -> None:
    pauses = [0.06, 0.0, 0.04, 0.02, 0.0]
    scripts = {f"p{place}": [pause, *tokens(f"p{place}")] for place, pause in enumerate(pauses)}
    with PromptScriptsEngine(**scripts) as engine:
        (chunk,) = await yields_of(engine, {"prompts": list(scripts)})
    assert texts(chunk["outputs"]) == list(scripts)


# With a stream:


async def test_results_of_a_stream_are_yielded_in_order_of_completion() -> None:
    first, last = asyncio.Event(), asyncio.Event()
    scripts = {"a": [last, *tokens("a")], "b": tokens("b"), "c": [first, *tokens("c")]}
    indices = []
    with PromptScriptsEngine(**scripts) as engine:
        async for chunk in worker(engine).handle(list_job(*"abc", stream=True)):
            indices.append(chunk["index"])
            engine.loop.call_soon_threadsafe((last if first.is_set() else first).set)
    assert indices == [1, 2, 0]


async def test_the_chunk_keys_have_no_effect_on_a_list() -> None:
    for size in (1, 50):
        payload = {"prompts": list("abcde"), "max_batch_size": size, "min_batch_size": 1}
        whole = await run_job(payload, *tokens("a"))
        stream = await run_job({**payload, "stream": True}, *tokens("a"))
        assert (len(whole), len(stream)) == (1, 5)


# Concurrently:


@every_form
async def test_all_items_run_concurrently_and_a_cancel_aborts_them(stream: bool) -> None:
    with ScriptedEngine(HANG) as engine:
        generator = worker(engine).handle(list_job(*["Hi"] * 300, stream=stream))
        next_yield = asyncio.ensure_future(anext(generator))
        await poll_until(lambda: len(engine.active_requests) == 300)
        request_ids = set(engine.active_requests)
        assert len(request_ids) == 300
        next_yield.cancel()
        with pytest.raises(asyncio.CancelledError):
            await next_yield
        await poll_until(lambda: not engine.active_requests)
        assert sorted(engine.aborted_requests) == sorted(request_ids)


class ConcurrencyCounter(list[str]):
    """The ids of running requests, and the highest number of them that ran concurrently."""

    highest = 0

    def append(self, request_id: str) -> None:
        super().append(request_id)
        self.highest = max(self.highest, len(self))


async def test_a_long_list_leaves_capacity_for_other_requests() -> None:
    slots, count = 2, 30
    highest = 2 * slots
    go_on = asyncio.Event()
    with ScriptedEngine(go_on, *tokens("a", "b", pause=0.005)) as engine:
        engine.slots = slots
        engine.active_requests = counter = ConcurrencyCounter()
        list_task = asyncio.create_task(yields_of(engine, {"prompts": ["Hi"] * count}))
        await poll_until(lambda: len(counter) >= highest)
        engine.loop.call_soon_threadsafe(go_on.set)
        yields = await list_task
    assert texts(results_of(yields, stream=False)) == ["ab"] * count
    assert counter.highest == highest


async def run_list(*prompts: Any, stream: bool = False, **scripts: Any) -> list[Any]:
    """Return the yields of a list; the keyword arguments are the scripts of the prompts."""
    with PromptScriptsEngine(**scripts) as engine:
        yields = await yields_of(engine, {"prompts": list(prompts), "stream": stream})
        await poll_until(lambda: not engine.active_requests)
    return yields


# Lists larger than a yield:


@pytest.mark.parametrize("unit", ["é", '"'])
async def test_outputs_too_large_for_one_yield_continue_in_the_next(unit: str) -> None:
    bytes_per_unit = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
    long = unit * (300_000 // bytes_per_unit)
    yields = await run_list(*["long"] * 8, "Hi", long=tokens(long))
    assert [len(chunk["outputs"]) for chunk in yields] == [3, 3, 3]
    assert [chunk.get("index") for chunk in yields] == [None, 3, 6]
    assert max(sizes(yields)) < LIMIT
    assert texts(results_of(yields, stream=False)) == [long] * 8 + ["Hi"]


async def test_the_first_outputs_are_yielded_while_others_are_generated() -> None:
    with PromptScriptsEngine(long=tokens("a" * 600_000), slow=[HANG]) as engine:
        generator = worker(engine).handle(list_job("long", "long", "slow"))
        async with asyncio.timeout(60):
            first = await anext(generator)
        await generator.aclose()
    assert "index" not in first
    assert texts(first["outputs"]) == ["a" * 600_000]


@every_form
async def test_a_result_almost_as_large_as_a_yield_has_its_own_yield(stream: bool) -> None:
    long = "a" * 940_000
    yields = await run_list("long", "long", stream=stream, long=tokens(long))
    assert len(yields) == 2
    assert texts(results_of(yields, stream=stream)) == [long] * 2
    assert max(sizes(yields)) < LIMIT


# Failures:


@every_form
@pytest.mark.parametrize(
    ("step", "error"),
    [
        (RefusedByEngine("too long", status=400, param="prompt"), ("too long", 400, False)),
        (RefusedByEngine("no such model", status=404), ("no such model", 404, False)),
        (EngineBusy("full"), ("full", 503, True)),
        # The RunPod SDK must be able to encode the message.
        (RefusedByEngine("no \ud83d", status=400, param="\ud83d"), ("no ?", 400, False)),
        (tokens("a" * LIMIT)[0], ("This result has 1,000,", 413, False)),
    ],
    ids=["refused", "unknown", "busy", "half-a-character", "too-large"],
)
async def test_an_item_that_fails_has_an_error_in_its_place(
    step: Step, error: tuple[str, int, bool], stream: bool
) -> None:
    yields = await run_list("Hi", "wrong", "Ho", stream=stream, wrong=[step])
    assert max(sizes(yields)) < LIMIT
    one, wrong, other = results_of(yields, stream=stream)
    assert texts([one, other]) == ["Hi", "Ho"]
    assert list(wrong) == ["error"]
    message, *rest = error
    assert wrong["error"]["message"].startswith(message)
    assert [wrong["error"]["code"], wrong["error"]["retryable"]] == rest


@every_form
async def test_invalid_items_do_not_reach_the_engine(stream: bool) -> None:
    payload = {"prompts": ["Hi", 7, "Ho"], "sampling_params": [{}, {}, {"n": 0}], "stream": stream}
    with PromptScriptsEngine() as engine:
        yields = await yields_of(engine, payload)
    right, *wrong = results_of(yields, stream=stream)
    assert texts([right]) == ["Hi"]
    assert [(list(item), item["error"]["code"], item["error"]["param"]) for item in wrong] == [
        (["error"], 400, "prompt"),
        (["error"], 400, "n"),
    ]
    assert [request.prompt for request in engine.requests if isinstance(request, RawJob)] == ["Hi"]


@every_form
@pytest.mark.parametrize("prompts", [("last", "slow", "slow"), ("slow", "slow", "last")])
async def test_an_engine_that_dies_fails_the_job(prompts: tuple[str, ...], stream: bool) -> None:
    yields = await run_list(*prompts, stream=stream, slow=[HANG], last=[0.02, EngineDead()])
    assert len(yields) == 1
    error = failure(yields)
    assert (error["code"], error["retryable"], error["request_id"]) == (503, True, "job-1")


async def test_results_from_before_the_engine_died_are_yielded_before_the_error() -> None:
    yields = await run_list("last", "Hi", "Ho", stream=True, last=[0.1, EngineDead()])
    assert sorted(chunk["index"] for chunk in yields[:-1]) == [1, 2]
    assert failure(yields)["code"] == 503
