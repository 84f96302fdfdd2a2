"""The raw path through the worker, up to what the SDK gets."""

import asyncio
from typing import Any

import pytest
from support.engine.answers import EXACT, Details, answered, every_form
from support.engine.scripted import HANG, ScriptedEngine, raw, tokens, worker, yields_of

from worker.engine import Delta
from worker.job import RawJob


def words(yields: list[dict[str, Any]], index: int = 0) -> list[list[str]]:
    """Return the tokens of one choice, yield by yield."""
    return [chunk["choices"][index]["tokens"] for chunk in yields]


def lengths(yields: list[dict[str, Any]]) -> list[int]:
    return [len(part) for part in words(yields)]


async def test_an_answer_that_is_not_streamed_is_one_yield_with_one_string() -> None:
    assert await answered(raw(stream=False), *tokens("Hel", "lo", "!", finish="length")) == [
        {
            "choices": [{"tokens": ["Hello!"], "finish_reason": "length", "stop_reason": None}],
            "usage": {"input": 3, "output": 3},
            "request_id": "job-1",
        }
    ]


async def test_a_stream_grows_by_the_default_sizes_and_counts_what_came_so_far() -> None:
    yields = await answered(raw(stream=True, **EXACT), *tokens(*"x" * 100))
    assert lengths(yields) == [1, 3, 9, 27, 50, 10]
    assert [chunk["usage"] for chunk in yields] == [
        {"input": 3, "output": output} for output in (1, 4, 13, 40, 90, 100)
    ]


async def test_every_token_is_a_string_of_its_own() -> None:
    yields = await answered(raw(stream=True, **EXACT), *tokens("a", " b", "", "ç", "😀"))
    assert words(yields) == [["a"], [" b", "", "ç"], ["😀"]]


JOBS_SIZES = {"max_batch_size": 9, "min_batch_size": 2, "batch_size_growth_factor": 2}
LEFT_OPEN = {"max_batch_size": 0, "min_batch_size": None, "batch_size_growth_factor": 0}
SETTINGS = {
    "DEFAULT_BATCH_SIZE": "4",
    "DEFAULT_MIN_BATCH_SIZE": "2",
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "2",
    "DEFAULT_BATCH_MAX_DELAY_MS": "0",
}


@pytest.mark.parametrize(
    ("keys", "environ", "sizes"),
    [
        ({**JOBS_SIZES, **EXACT}, {}, [2, 4, 8, 9, 1]),
        ({**JOBS_SIZES}, SETTINGS, [2, 4, 8, 9, 1]),
        (LEFT_OPEN, SETTINGS, [2, 4, 4, 4, 4, 4, 2]),
    ],
    ids=["job", "job-over-settings", "settings"],
)
async def test_the_job_overrides_the_sizes_of_the_settings(
    keys: dict[str, Any], environ: dict[str, str], sizes: list[int]
) -> None:
    yields = await answered(raw(stream=True, **keys), *tokens(*"x" * 24), **environ)
    assert lengths(yields) == sizes


async def test_what_waits_goes_out_though_the_chunk_is_not_full_and_no_further_token_comes() -> (
    None
):
    with ScriptedEngine(*tokens("a", "b", "c", finish=None), HANG) as engine:
        job = {"id": "job-1", "input": raw(stream=True)}
        generator = worker(engine, DEFAULT_BATCH_MAX_DELAY_MS="5").handle(job)
        texts: list[str] = []
        async with asyncio.timeout(60):
            while len(texts) < 3:
                (part,) = words([await anext(generator)])
                texts += part
        await generator.aclose()
    assert texts == ["a", "b", "c"]


async def test_a_delay_of_zero_in_the_job_turns_the_bound_off() -> None:
    script = tokens(*"x" * 8, pause=0.01)
    yields = await answered(raw(stream=True, **EXACT), *script, DEFAULT_BATCH_MAX_DELAY_MS="1")
    assert lengths(yields) == [1, 3, 4]


async def test_only_the_last_yield_says_why_the_answer_ended_and_has_the_requests_id() -> None:
    script = [*tokens("a", "b", "c", finish=None), Delta(0, "", 0, 3, "stop", "###")]
    yields = await answered(raw(stream=True, **EXACT), *script)
    assert yields == [
        {"choices": [{"tokens": ["a"]}], "usage": {"input": 3, "output": 1}},
        {
            "choices": [{"tokens": ["b", "c", ""], "finish_reason": "stop", "stop_reason": "###"}],
            "usage": {"input": 3, "output": 3},
            "request_id": "job-1",
        },
    ]


async def test_several_choices_stand_side_by_side_count_together_and_end_in_the_last_yield() -> (
    None
):
    one, two = tokens("a", "b", "c"), tokens("x", "y", index=1, finish="length")
    payload = raw(stream=True, sampling_params={"n": 2}, **EXACT)
    yields = await answered(payload, one[0], two[0], one[1], two[1], one[2])
    assert words(yields, 0) == [["a"], ["b"], ["c"]]
    assert words(yields, 1) == [[], ["x", "y"], []]
    assert [chunk["usage"]["output"] for chunk in yields] == [1, 4, 5]
    reasons = [[choice.get("finish_reason") for choice in chunk["choices"]] for chunk in yields]
    assert reasons == [[None, None], [None, None], ["stop", "length"]]


@every_form
@pytest.mark.parametrize("params", [{"n": 2, "best_of": 3}, {"use_beam_search": True}], ids=str)
async def test_choices_that_are_compared_first_are_one_yield(params: Any, stream: bool) -> None:
    count = params.get("n", 1)
    whole = [Delta(index, f"whole {index}", 40, 3, "stop") for index in range(count)]
    with Details(*whole) as engine:
        yields = await yields_of(engine, raw(stream=stream, sampling_params=params))
    end = {"finish_reason": "stop", "stop_reason": None}
    assert yields == [
        {
            "choices": [{"tokens": [f"whole {index}"], **end} for index in range(count)],
            "usage": {"input": 3, "output": 40 * count},
            "request_id": "job-1",
        }
    ]
    assert [job.streamed for job in engine.asked if isinstance(job, RawJob)] == [False]
