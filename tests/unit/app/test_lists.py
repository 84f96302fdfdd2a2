"""Lists of prompts through the worker, up to what the SDK gets."""

import asyncio

import pytest
from support.engine.answers import Scripts, every_form, job, results_of, texts
from support.engine.scripted import HANG, ScriptedEngine, tokens, until, worker, yields_of

from worker.job import ListJob, RawJob, parse_input

# Not streaming:


async def test_a_list_is_one_yield_with_the_outputs() -> None:
    with Scripts() as engine:
        yields = await yields_of(engine, {"prompts": ["Hi", "Ho"]})
    ((key, outputs),) = [item for chunk in yields for item in chunk.items()]
    assert key == "outputs"
    end = {"finish_reason": "stop", "stop_reason": None}
    for output, text in zip(outputs, ["Hi", "Ho"], strict=True):
        assert output.pop("request_id")
        assert output == {
            "choices": [{"tokens": [text], **end}],
            "usage": {"input": 3, "output": 1},
        }


async def test_a_list_of_one_is_a_list() -> None:
    with Scripts() as engine:
        (chunk,) = await yields_of(engine, {"prompts": ["Hi"]})
    assert texts(chunk["outputs"]) == ["Hi"]


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
    with ScriptedEngine(*tokens("a"), *tokens("x", "y", index=1)) as engine:
        (chunk,) = await yields_of(engine, {"prompts": ["Hi"], "sampling_params": {"n": 2}})
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


@every_form
async def test_every_result_comes_once_and_belongs_to_its_prompt(stream: bool) -> None:
    prompts = [f"p{number}" for number in range(200)]
    scripts = {
        text: [0.001 * (7 * place % 10), *tokens(text)] for place, text in enumerate(prompts)
    }
    with Scripts(**scripts) as engine:
        yields = await yields_of(engine, {"prompts": prompts, "stream": stream})
    assert texts(results_of(yields, stream=stream)) == prompts


@pytest.mark.parametrize("size", [1, 50])
async def test_the_chunk_keys_do_not_change_how_a_list_is_cut(size: int) -> None:
    keys = {"max_batch_size": size, "min_batch_size": 1, "batch_size_growth_factor": 3}
    with Scripts() as engine:
        whole = await yields_of(engine, {"prompts": list("abcde"), **keys})
        stream = await yields_of(engine, {"prompts": list("abcde"), "stream": True, **keys})
    assert (len(whole), len(stream)) == (1, 5)


# Concurrently:


@every_form
async def test_all_items_are_in_the_engine_at_once_under_names_of_their_own(stream: bool) -> None:
    with ScriptedEngine(HANG) as engine:
        generator = worker(engine).handle(job(*["Hi"] * 300, stream=stream))
        waiting = asyncio.ensure_future(anext(generator))
        assert await until(lambda: len(engine.generating) == 300)
        assert len(set(engine.generating)) == 300
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_two_lists_at_once_do_not_mix() -> None:
    with Scripts() as engine:
        one_worker = worker(engine)

        async def answered(name: str) -> list[str]:
            prompts = [f"{name}{number}" for number in range(50)]
            given = {"id": name, "input": {"prompts": prompts}}
            (chunk,) = [chunk async for chunk in one_worker.handle(given)]
            assert texts(chunk["outputs"]) == prompts
            return [output["request_id"] for output in chunk["outputs"]]

        one, other = await asyncio.gather(answered("a"), answered("b"))
    assert len({*one, *other}) == 100


# Cancelled:


@every_form
async def test_a_cancelled_list_leaves_nothing_in_the_engine(stream: bool) -> None:
    with ScriptedEngine(HANG) as engine:
        generator = worker(engine).handle(job(*["Hi"] * 20, stream=stream))
        waiting = asyncio.ensure_future(anext(generator))
        assert await until(lambda: len(engine.generating) == 20)
        begun = set(engine.generating)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await until(lambda: not engine.generating)
        assert sorted(engine.aborted) == sorted(begun)


async def test_closing_the_generator_aborts_what_is_not_ready_yet() -> None:
    with Scripts(slow=[HANG]) as engine:
        generator = worker(engine).handle(job("slow", "fast", "slow", stream=True))
        await anext(generator)
        assert len(engine.generating) == 2
        begun = set(engine.generating)
        await generator.aclose()
        assert await until(lambda: not engine.generating)
        assert sorted(engine.aborted) == sorted(begun)


async def test_a_list_cancelled_in_a_post_is_aborted_though_its_generator_is_kept() -> None:
    with Scripts(slow=[HANG]) as engine:
        generator = worker(engine).handle(job("fast", "slow", "slow", stream=True))
        posting = asyncio.Event()

        async def sdk() -> None:
            async for _ in generator:
                posting.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(sdk())
        await posting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await until(lambda: not engine.generating)
        assert len(engine.aborted) == 2
        await generator.aclose()


class Counted(list[str]):
    """Requests that run, and the most that ran at once."""

    most = 0

    def append(self, request_id: str) -> None:
        super().append(request_id)
        self.most = max(self.most, len(self))


async def test_a_long_list_leaves_the_engines_queue_to_others() -> None:
    slow = tokens("a", "b", pause=0.005)
    with Scripts(slow=slow) as engine:
        engine.slots = 2
        engine.generating = counted = Counted()
        yields = await yields_of(engine, {"prompts": ["slow"] * 30})
    assert texts(results_of(yields, stream=False)) == ["ab"] * 30
    assert counted.most == 4


async def test_items_with_log_probabilities_leave_room_for_those_of_others() -> None:
    slow = tokens("a", "b", pause=0.005)
    with Scripts(slow=slow) as engine:
        engine.slots = 256
        engine.generating = counted = Counted()
        job = {"prompts": ["slow"] * 100, "sampling_params": {"n": 2, "logprobs": 31}}
        yields = await yields_of(engine, job)
    assert len(results_of(yields, stream=False)) == 100
    assert counted.most == 512 // (2 * 32)
