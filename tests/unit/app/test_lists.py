"""Lists of prompts through the worker, up to what the SDK gets."""

import asyncio
from typing import Any

import pytest
from support.engine.answers import Scripts, answered, every_form, job, results_of, texts
from support.engine.scripted import HANG, ScriptedEngine, tokens, until, worker, yields_of

from worker.job import ListJob, RawJob, parse_input

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


async def test_the_outputs_stand_in_the_order_of_the_prompts_whichever_is_ready_first() -> None:
    pauses = [0.06, 0.0, 0.04, 0.02, 0.0]
    scripts = {f"p{place}": [pause, *tokens(f"p{place}")] for place, pause in enumerate(pauses)}
    with Scripts(**scripts) as engine:
        (chunk,) = await yields_of(engine, {"prompts": list(scripts)})
    assert texts(chunk["outputs"]) == list(scripts)


async def test_conversations_are_answered_as_prompts_are() -> None:
    turns = [[{"role": "user", "content": text}] for text in ("Hi", "Ho")]
    with ScriptedEngine(*tokens("a", "b")) as engine:
        (chunk,) = await yields_of(engine, {"messages_list": turns})
    assert texts(chunk["outputs"]) == ["ab", "ab"]
    asked = [job.conversation for job in engine.asked if isinstance(job, RawJob)]
    assert sorted(asked, key=str) == sorted(turns, key=str)


@every_form
async def test_the_engine_gets_each_item(stream: bool) -> None:
    payload = {"prompts": ["Hi", "Ho"], "sampling_params": [{"n": 1}, {"seed": 1}]}
    parsed = parse_input(payload)
    assert isinstance(parsed, ListJob)
    with Scripts() as engine:
        await yields_of(engine, {**payload, "stream": stream})
    assert engine.asked == list(parsed.items)


async def test_an_item_can_have_several_choices() -> None:
    payload = {"prompts": ["Hi"], "sampling_params": {"n": 2}}
    (chunk,) = await answered(payload, *tokens("a"), *tokens("x", "y", index=1))
    (output,) = chunk["outputs"]
    assert [choice["tokens"] for choice in output["choices"]] == [["a"], ["xy"]]
    assert output["usage"]["output"] == 3


# Streaming:


async def test_each_result_is_a_yield_of_its_own_as_soon_as_it_is_ready() -> None:
    with Scripts(slow=[HANG]) as engine:
        generator = worker(engine).handle(job("slow", "fast", "slow", stream=True))
        async with asyncio.timeout(60):
            first = await anext(generator)
        await generator.aclose()
    assert list(first) == ["index", "result"]
    assert first["index"] == 1
    assert texts([first["result"]]) == ["fast"]


async def test_results_come_in_the_order_in_which_they_are_ready() -> None:
    first, last = asyncio.Event(), asyncio.Event()
    scripts = {"a": [last, *tokens("a")], "b": tokens("b"), "c": [first, *tokens("c")]}
    indices = []
    with Scripts(**scripts) as engine:
        async for chunk in worker(engine).handle(job(*"abc", stream=True)):
            indices.append(chunk["index"])
            engine.loop.call_soon_threadsafe((last if first.is_set() else first).set)
    assert indices == [1, 2, 0]


@pytest.mark.parametrize("size", [1, 50])
async def test_the_chunk_keys_do_not_change_how_a_list_is_cut(size: int) -> None:
    keys = {"max_batch_size": size, "min_batch_size": 1, "batch_size_growth_factor": 3}
    payload = {"prompts": list("abcde"), **keys}
    whole = await answered(payload, *tokens("a"))
    stream = await answered({**payload, "stream": True}, *tokens("a"))
    assert (len(whole), len(stream)) == (1, 5)


# Concurrently:


@every_form
async def test_all_items_are_in_the_engine_at_once_and_a_cancel_ends_them(stream: bool) -> None:
    with ScriptedEngine(HANG) as engine:
        generator = worker(engine).handle(job(*["Hi"] * 300, stream=stream))
        waiting = asyncio.ensure_future(anext(generator))
        assert await until(lambda: len(engine.generating) == 300)
        begun = set(engine.generating)
        assert len(begun) == 300
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await until(lambda: not engine.generating)
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
    with ScriptedEngine(*tokens("a", "b", pause=0.005)) as engine:
        engine.slots = slots
        engine.generating = counted = Counted()
        yields = await yields_of(engine, {"prompts": ["Hi"] * count, "sampling_params": params})
    assert texts(results_of(yields, stream=False)) == ["ab"] * count
    assert counted.most == most
