"""The raw path through the worker, up to what the SDK gets."""

import asyncio
import json
from typing import Any

import pytest
from support.engine.scripted import HANG, ScriptedEngine, raw, tokens, until, worker, yields_of

from worker.engine import Delta
from worker.errors import EngineDead, RefusedByEngine
from worker.job import RawJob

EXACT = {"max_batch_delay_ms": 0}  # chunks of the formula's sizes, however slow the machine


def words(yields: list[dict[str, Any]], index: int = 0) -> list[list[str]]:
    """Return the tokens of one choice, yield by yield."""
    return [chunk["choices"][index]["tokens"] for chunk in yields]


async def test_an_answer_that_is_not_streamed_is_one_yield_with_one_string() -> None:
    with ScriptedEngine(*tokens("Hel", "lo", "!", finish="length")) as engine:
        yields = await yields_of(engine, raw(stream=False))
    end = {"finish_reason": "length", "stop_reason": None}
    assert yields == [
        {
            "choices": [{"tokens": ["Hello!"], **end}],
            "usage": {"input": 3, "output": 3},
            "request_id": "job-1",
        }
    ]


async def test_a_stream_grows_by_the_default_sizes_and_counts_what_came_so_far() -> None:
    with ScriptedEngine(*tokens(*"x" * 100)) as engine:
        yields = await yields_of(engine, raw(stream=True, **EXACT))
    assert [len(part) for part in words(yields)] == [1, 3, 9, 27, 50, 10]
    assert [chunk["usage"]["output"] for chunk in yields] == [1, 4, 13, 40, 90, 100]
    assert {chunk["usage"]["input"] for chunk in yields} == {3}


async def test_every_token_is_a_string_of_its_own() -> None:
    with ScriptedEngine(*tokens("a", " b", "", "ç", "😀")) as engine:
        yields = await yields_of(engine, raw(stream=True, **EXACT))
    assert words(yields) == [["a"], [" b", "", "ç"], ["😀"]]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_gets_the_job_that_was_sent(stream: bool) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        payload = raw(stream=stream, sampling_params={"seed": 1})
        await yields_of(engine, payload)
    assert engine.asked == [RawJob.read(payload)]


async def test_the_job_overrides_the_sizes_of_its_chunks() -> None:
    sizes = {"max_batch_size": 9, "min_batch_size": 2, "batch_size_growth_factor": 2}
    with ScriptedEngine(*tokens(*"x" * 32)) as engine:
        yields = await yields_of(engine, raw(stream=True, **sizes, **EXACT))
    assert [len(part) for part in words(yields)] == [2, 4, 8, 9, 9]


async def test_the_settings_give_the_sizes_that_the_job_leaves_open() -> None:
    environ = {
        "DEFAULT_BATCH_SIZE": "4",
        "DEFAULT_MIN_BATCH_SIZE": "2",
        "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "2",
        "DEFAULT_BATCH_MAX_DELAY_MS": "0",
    }
    sizes = {"max_batch_size": 0, "min_batch_size": None, "batch_size_growth_factor": 0}
    with ScriptedEngine(*tokens(*"x" * 12)) as engine:
        yields = await yields_of(engine, raw(stream=True, **sizes), **environ)
    assert [len(part) for part in words(yields)] == [2, 4, 4, 2]


@pytest.mark.parametrize(
    ("delay", "environ"),
    [({}, {"DEFAULT_BATCH_MAX_DELAY_MS": "5"}), ({"max_batch_delay_ms": 5}, {})],
    ids=["settings", "job"],
)
async def test_what_waits_goes_out_though_the_chunk_is_not_full_and_no_further_token_comes(
    delay: dict[str, int], environ: dict[str, str]
) -> None:
    with ScriptedEngine(*tokens("a", "b", "c", finish=None), HANG) as engine:
        job = {"id": "job-1", "input": raw(stream=True, **delay)}
        generator = worker(engine, **environ).handle(job)
        texts: list[str] = []
        async with asyncio.timeout(60):
            while len(texts) < 3:
                (part,) = words([await anext(generator)])
                texts += part
        await generator.aclose()
    assert texts == ["a", "b", "c"]


async def test_a_delay_of_zero_in_the_job_turns_the_bound_off() -> None:
    with ScriptedEngine(*tokens(*"x" * 8, pause=0.01)) as engine:
        environ = {"DEFAULT_BATCH_MAX_DELAY_MS": "1"}
        yields = await yields_of(engine, raw(stream=True, **EXACT), **environ)
    assert [len(part) for part in words(yields)] == [1, 3, 4]


async def test_only_the_last_yield_has_the_finish_reason() -> None:
    script = [*tokens("a", "b", "c", finish=None), Delta(0, "", 0, 3, "stop", "###")]
    with ScriptedEngine(*script) as engine:
        yields = await yields_of(engine, raw(stream=True, **EXACT))
    assert [chunk["choices"][0].get("finish_reason") for chunk in yields] == [None, "stop"]
    assert "stop_reason" not in yields[0]["choices"][0]
    assert yields[-1]["choices"][0]["stop_reason"] == "###"
    assert yields[-1]["usage"]["output"] == 3


async def test_several_choices_stand_side_by_side_and_count_together() -> None:
    one, two = tokens("a", "b", "c"), tokens("x", "y", index=1, finish="length")
    script = [one[0], two[0], one[1], two[1], one[2]]
    with ScriptedEngine(*script) as engine:
        payload = raw(stream=True, sampling_params={"n": 2}, **EXACT)
        yields = await yields_of(engine, payload)
    assert words(yields, 0) == [["a"], ["b"], ["c"]]
    assert words(yields, 1) == [[], ["x", "y"], []]
    assert [chunk["usage"] for chunk in yields] == [
        {"input": 3, "output": output} for output in (1, 4, 5)
    ]


async def test_only_the_last_yield_has_the_finish_reasons_of_several_choices() -> None:
    one, two = tokens("a", "b", "c", "d"), tokens("x", index=1, finish="length")
    with ScriptedEngine(*two, *one) as engine:
        payload = raw(stream=True, sampling_params={"n": 2}, **EXACT)
        yields = await yields_of(engine, payload)
    reasons = [[choice.get("finish_reason") for choice in chunk["choices"]] for chunk in yields]
    assert reasons == [[None, None], [None, None], ["stop", "length"]]


async def test_several_choices_that_are_not_streamed_are_one_yield() -> None:
    with ScriptedEngine(*tokens("a", "b"), *tokens("x", index=1)) as engine:
        (chunk,) = await yields_of(engine, raw(stream=False, sampling_params={"n": 2}))
    assert [choice["tokens"] for choice in chunk["choices"]] == [["ab"], ["x"]]
    assert chunk["usage"] == {"input": 3, "output": 3}


@pytest.mark.parametrize("n", [None, 1])
async def test_n_may_be_null(n: int | None) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        (chunk,) = await yields_of(engine, raw(stream=False, sampling_params={"n": n}))
    assert len(chunk["choices"]) == 1


async def test_log_probabilities_come_with_their_tokens() -> None:
    logprobs: list[dict[str, Any]] = [{"token": text, "logprob": -0.5} for text in "abcde"]
    script = [
        Delta(0, item["token"], 1, 3, "stop" if item is logprobs[-1] else None, logprobs=[item])
        for item in logprobs
    ]
    with ScriptedEngine(*script) as engine:
        yields = await yields_of(engine, raw(stream=True, **EXACT))
    assert [chunk["choices"][0]["logprobs"] for chunk in yields] == [
        logprobs[:1],
        logprobs[1:4],
        logprobs[4:],
    ]


async def test_without_log_probabilities_there_is_no_key_for_them() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        (chunk,) = await yields_of(engine, raw(stream=True))
    assert "logprobs" not in chunk["choices"][0]


async def test_a_slow_consumer_gets_everything_in_order_in_few_yields() -> None:
    texts = [f" {number}" for number in range(150)]
    got = []
    with ScriptedEngine(*tokens(*texts)) as engine:
        job = {"id": "job-1", "input": raw(stream=True)}
        async for chunk in worker(engine).handle(job):
            got.append(chunk)
            assert await until(lambda: not engine.generating)
    assert [text for part in words(got) for text in part] == texts
    assert len(got) <= 8
    assert max(len(part) for part in words(got)) <= 50


async def test_no_yield_of_a_stream_exceeds_what_the_platform_takes() -> None:
    texts = ["é" * 100_000 for _ in range(12)]  # 200 kB each
    with ScriptedEngine(*tokens(*texts)) as engine:
        yields = await yields_of(engine, raw(stream=True, min_batch_size=50, **EXACT))
    sizes = [len(json.dumps(chunk, ensure_ascii=False).encode()) for chunk in yields]
    assert [len(part) for part in words(yields)] == [4, 4, 4]
    assert max(sizes) <= 1_000_000
    assert [text for part in words(yields) for text in part] == texts


async def test_log_probabilities_count_for_the_size_of_a_yield() -> None:
    logprobs = [{"token": "é" * 100_000, "logprob": -0.5}]  # 200 kB
    script = [
        Delta(0, "a", 1, 3, "stop" if place == 9 else None, None, logprobs) for place in range(10)
    ]
    with ScriptedEngine(*script) as engine:
        yields = await yields_of(engine, raw(stream=True, min_batch_size=50, **EXACT))
    sizes = [len(json.dumps(chunk, ensure_ascii=False).encode()) for chunk in yields]
    assert max(sizes) <= 1_000_000
    assert [len(part) for part in words(yields)] == [4, 4, 2]


async def test_many_jobs_at_once_do_not_mix() -> None:
    with ScriptedEngine(*tokens("a", "b", "c", pause=0.002)) as engine:
        answers = await asyncio.gather(
            *[yields_of(engine, raw(stream=number % 2 == 0)) for number in range(40)]
        )
    for answer in answers:
        assert "".join(text for part in words(answer) for text in part) == "abc"
        assert answer[-1]["usage"] == {"input": 3, "output": 3}


async def test_two_jobs_of_one_worker_share_no_state() -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        one_worker = worker(engine)
        job = {"id": "job-1", "input": raw(stream=False)}
        answers = [[chunk async for chunk in one_worker.handle(job)] for _ in range(2)]
    assert answers[0] == answers[1]


async def test_an_engine_that_dies_before_the_first_token_fails_the_job_alone() -> None:
    with ScriptedEngine(EngineDead()) as engine:
        (chunk,) = await yields_of(engine, raw(stream=True))
    assert list(chunk) == ["error"]


async def test_what_came_before_a_failure_goes_out_before_it() -> None:
    script = [*tokens(*"abcde", finish=None), RefusedByEngine("no", status=400)]
    with ScriptedEngine(*script) as engine:
        yields = await yields_of(engine, raw(stream=True, min_batch_size=20, **EXACT))
    assert words(yields[:-1]) == [["a", "b", "c", "d", "e"]]
    assert list(yields[-1]) == ["error"]
