"""Lists of prompts through the worker: their yields, how many run at once, items that fail."""

import asyncio
import json
from typing import Any

import pytest
from support.engine.answers import (
    LIMIT,
    Scripts,
    answered,
    every_form,
    job,
    results_of,
    sizes,
    texts,
)
from support.engine.scripted import HANG, ScriptedEngine, Step, tokens, worker, yields_of
from support.engine.yields import failure
from support.processes.background import eventually

from worker.errors import EngineBusy, EngineDead, RefusedByEngine
from worker.job import RawJob

# Not streaming:


async def test_a_list_is_one_yield_with_the_outputs() -> None:
    with Scripts() as engine:
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


async def test_the_engine_learns_which_requests_are_items_of_a_list() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, {"prompt": "Hi"})
        assert engine.items == []
        await yields_of(engine, {"prompts": ["Hi", "Ho"]})
    assert engine.items == ["job-1-0", "job-1-1"]


async def test_the_outputs_stand_in_the_order_of_the_prompts_whichever_is_ready_first() -> None:
    pauses = [0.06, 0.0, 0.04, 0.02, 0.0]
    scripts = {f"p{place}": [pause, *tokens(f"p{place}")] for place, pause in enumerate(pauses)}
    with Scripts(**scripts) as engine:
        (chunk,) = await yields_of(engine, {"prompts": list(scripts)})
    assert texts(chunk["outputs"]) == list(scripts)


# Streaming:


async def test_results_come_in_the_order_in_which_they_are_ready() -> None:
    first, last = asyncio.Event(), asyncio.Event()
    scripts = {"a": [last, *tokens("a")], "b": tokens("b"), "c": [first, *tokens("c")]}
    indices = []
    with Scripts(**scripts) as engine:
        async for chunk in worker(engine).handle(job(*"abc", stream=True)):
            indices.append(chunk["index"])
            engine.loop.call_soon_threadsafe((last if first.is_set() else first).set)
    assert indices == [1, 2, 0]


async def test_the_chunk_keys_do_not_change_how_a_list_is_cut() -> None:
    for size in (1, 50):
        payload = {"prompts": list("abcde"), "max_batch_size": size, "min_batch_size": 1}
        whole = await answered(payload, *tokens("a"))
        stream = await answered({**payload, "stream": True}, *tokens("a"))
        assert (len(whole), len(stream)) == (1, 5)


# Concurrently:


@every_form
async def test_all_items_are_in_the_engine_at_once_and_a_cancel_ends_them(stream: bool) -> None:
    with ScriptedEngine(HANG) as engine:
        generator = worker(engine).handle(job(*["Hi"] * 300, stream=stream))
        waiting = asyncio.ensure_future(anext(generator))
        await eventually(lambda: len(engine.generating) == 300)
        begun = set(engine.generating)
        assert len(begun) == 300
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: not engine.generating)
        assert sorted(engine.aborted) == sorted(begun)


class Counted(list[str]):
    """Requests that run, and the most that ran at once."""

    most = 0

    def append(self, request_id: str) -> None:
        super().append(request_id)
        self.most = max(self.most, len(self))


@pytest.mark.parametrize(
    ("slots", "count", "params", "most"),
    [
        (2, 30, {}, 4),
        # Those with log probabilities leave room for those of others.
        (256, 100, {"n": 2, "logprobs": 31}, 512 // (2 * 32)),
    ],
)
async def test_a_long_list_leaves_the_engine_to_others(
    slots: int, count: int, params: dict[str, Any], most: int
) -> None:
    go_on = asyncio.Event()
    with ScriptedEngine(go_on, *tokens("a", "b", pause=0.005)) as engine:
        engine.slots = slots
        engine.generating = counted = Counted()
        payload = {"prompts": ["Hi"] * count, "sampling_params": params}
        asking = asyncio.create_task(yields_of(engine, payload))
        await eventually(lambda: len(counted) >= most)
        engine.loop.call_soon_threadsafe(go_on.set)
        yields = await asking
    assert texts(results_of(yields, stream=False)) == ["ab"] * count
    assert counted.most == most


async def listed(*prompts: Any, stream: bool = False, **scripts: Any) -> list[Any]:
    """Return the yields of a list whose prompts have scripts."""
    with Scripts(**scripts) as engine:
        yields = await yields_of(engine, {"prompts": list(prompts), "stream": stream})
        await eventually(lambda: not engine.generating)
    return yields


# Larger than a yield:


@pytest.mark.parametrize("unit", ["é", '"'])
async def test_outputs_that_do_not_fit_one_yield_go_on_in_the_next(unit: str) -> None:
    share = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
    long = unit * (300_000 // share)
    yields = await listed(*["long"] * 8, "Hi", long=tokens(long))
    assert [len(chunk["outputs"]) for chunk in yields] == [3, 3, 3]
    assert [chunk.get("index") for chunk in yields] == [None, 3, 6]
    assert max(sizes(yields)) < LIMIT
    assert texts(results_of(yields, stream=False)) == [long] * 8 + ["Hi"]


async def test_the_first_outputs_go_out_while_the_others_are_still_generated() -> None:
    with Scripts(long=tokens("a" * 600_000), slow=[HANG]) as engine:
        generator = worker(engine).handle(job("long", "long", "slow"))
        async with asyncio.timeout(60):
            first = await anext(generator)
        await generator.aclose()
    assert "index" not in first
    assert texts(first["outputs"]) == ["a" * 600_000]


@every_form
async def test_a_result_that_just_fits_a_yield_has_one_of_its_own(stream: bool) -> None:
    long = "a" * 940_000
    yields = await listed("long", "long", stream=stream, long=tokens(long))
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
