"""Responses of the raw and of the OpenAI path, as the RunPod SDK gets them."""

import asyncio
import itertools
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import Message
from support.engine.answers import EXACT, LIMIT, DetailedEngine, every_form, run_job, sizes
from support.engine.scripted import (
    HANG,
    ScriptedEngine,
    chat_job,
    event,
    events_in,
    failure,
    raw_job,
    split_stream_error,
    texts_in,
    tokens,
    worker,
    yields_of,
)

from worker.engine import Delta
from worker.job import RawJob
from worker.json_lines import escape_line_breaks


def tokens_by_yield(yields: list[dict[str, Any]], index: int = 0) -> list[list[str]]:
    """Return the tokens of one choice, yield by yield."""
    return [chunk["choices"][index]["tokens"] for chunk in yields]


def token_counts(yields: list[dict[str, Any]]) -> list[int]:
    return [len(part) for part in tokens_by_yield(yields)]


async def test_a_response_without_a_stream_is_one_yield_with_one_string() -> None:
    assert await run_job(raw_job(stream=False), *tokens("Hel", "lo", "!", finish="length")) == [
        {
            "choices": [{"tokens": ["Hello!"], "finish_reason": "length", "stop_reason": None}],
            "usage": {"input": 3, "output": 3},
            "request_id": "job-1",
        }
    ]


async def test_chunks_of_a_stream_grow_by_default_and_have_cumulative_usage() -> None:
    yields = await run_job(raw_job(stream=True, **EXACT), *tokens(*"x" * 100))
    assert token_counts(yields) == [1, 3, 9, 27, 50, 10]
    assert [chunk["usage"] for chunk in yields] == [
        {"input": 3, "output": output} for output in (1, 4, 13, 40, 90, 100)
    ]


async def test_every_token_of_a_stream_is_a_separate_string() -> None:
    yields = await run_job(raw_job(stream=True, **EXACT), *tokens("a", " b", "", "ç", "😀"))
    assert tokens_by_yield(yields) == [["a"], [" b", "", "ç"], ["😀"]]


JOB_SIZES = {"max_batch_size": 9, "min_batch_size": 2, "batch_size_growth_factor": 2}
UNSET_SIZES = {"max_batch_size": 0, "min_batch_size": None, "batch_size_growth_factor": 0}
SETTINGS = {
    "DEFAULT_BATCH_SIZE": "4",
    "DEFAULT_MIN_BATCH_SIZE": "2",
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "2",
    "DEFAULT_BATCH_MAX_DELAY_MS": "0",
}


@pytest.mark.parametrize(
    ("keys", "environ", "expected"),
    [
        ({**JOB_SIZES, **EXACT}, {}, [2, 4, 8, 9, 1]),
        ({**JOB_SIZES}, SETTINGS, [2, 4, 8, 9, 1]),
        (UNSET_SIZES, SETTINGS, [2, 4, 4, 4, 4, 4, 2]),
    ],
    ids=["job", "job-over-settings", "settings"],
)
async def test_the_job_overrides_the_sizes_of_the_settings(
    keys: dict[str, Any], environ: dict[str, str], expected: list[int]
) -> None:
    yields = await run_job(raw_job(stream=True, **keys), *tokens(*"x" * 24), **environ)
    assert token_counts(yields) == expected


async def test_waiting_tokens_are_yielded_after_the_delay_although_the_chunk_is_not_full() -> None:
    with ScriptedEngine(*tokens("a", "b", "c", finish=None), HANG) as engine:
        job = {"id": "job-1", "input": raw_job(stream=True)}
        generator = worker(engine, DEFAULT_BATCH_MAX_DELAY_MS="5").handle(job)
        texts: list[str] = []
        async with asyncio.timeout(60):
            while len(texts) < 3:
                (part,) = tokens_by_yield([await anext(generator)])
                texts += part
        await generator.aclose()
    assert texts == ["a", "b", "c"]


async def test_a_delay_of_zero_in_the_job_disables_the_delay_of_the_settings() -> None:
    script = tokens(*"x" * 8, pause=0.01)
    yields = await run_job(raw_job(stream=True, **EXACT), *script, DEFAULT_BATCH_MAX_DELAY_MS="1")
    assert token_counts(yields) == [1, 3, 4]


async def test_only_the_last_yield_has_the_finish_reason_and_the_request_id() -> None:
    script = [*tokens("a", "b", "c", finish=None), Delta(0, "", 0, 3, "stop", "###")]
    yields = await run_job(raw_job(stream=True, **EXACT), *script)
    assert yields == [
        {"choices": [{"tokens": ["a"]}], "usage": {"input": 3, "output": 1}},
        {
            "choices": [{"tokens": ["b", "c", ""], "finish_reason": "stop", "stop_reason": "###"}],
            "usage": {"input": 3, "output": 3},
            "request_id": "job-1",
        },
    ]


async def test_choices_are_yielded_together_with_common_usage_and_end_in_the_last_yield() -> None:
    one, two = tokens("a", "b", "c"), tokens("x", "y", index=1, finish="length")
    payload = raw_job(stream=True, sampling_params={"n": 2}, **EXACT)
    yields = await run_job(payload, one[0], two[0], one[1], two[1], one[2])
    assert tokens_by_yield(yields, 0) == [["a"], ["b"], ["c"]]
    assert tokens_by_yield(yields, 1) == [[], ["x", "y"], []]
    assert [chunk["usage"]["output"] for chunk in yields] == [1, 4, 5]
    reasons = [[choice.get("finish_reason") for choice in chunk["choices"]] for chunk in yields]
    assert reasons == [[None, None], [None, None], ["stop", "length"]]


@every_form
@pytest.mark.parametrize("params", [{"n": 2, "best_of": 3}, {"use_beam_search": True}], ids=str)
async def test_ranked_choices_are_one_yield(params: Any, stream: bool) -> None:
    count = params.get("n", 1)
    deltas = [Delta(index, f"whole {index}", 40, 3, "stop") for index in range(count)]
    with DetailedEngine(*deltas) as engine:
        yields = await yields_of(engine, raw_job(stream=stream, sampling_params=params))
    end = {"finish_reason": "stop", "stop_reason": None}
    assert yields == [
        {
            "choices": [{"tokens": [f"whole {index}"], **end} for index in range(count)],
            "usage": {"input": 3, "output": 40 * count},
            "request_id": "job-1",
        }
    ]
    assert [job.is_streamed for job in engine.requests if isinstance(job, RawJob)] == [False]


# The OpenAI path:

DECODED = {"RAW_OPENAI_OUTPUT": "0"}
STREAM = chat_job(stream=True, **EXACT)
LINE_BREAKS = "a\u2028b\u2029c\x85d\x0be\r\nf😀"  # every line boundary of str.splitlines


async def serve_parts(
    payload: dict[str, Any],
    *parts: bytes,
    media_type: str = "text/event-stream",
    pauses: Collection[int] = (),
) -> list[Any]:
    """Return the yields of a job whose response body arrives in these parts.

    After the parts with the numbers in ``pauses``, the worker handles all parts so far.
    """
    headers = [(b"content-type", media_type.encode())]

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            for _turn in range(10 * (number in pauses)):
                await asyncio.sleep(0)

    with ScriptedEngine(app=app) as engine:
        return await yields_of(engine, payload)


async def test_a_response_without_a_stream_is_the_body_of_vllms_server() -> None:
    message = {"role": "assistant", "content": "Hello"}
    assert await run_job(chat_job(stream=False), *tokens("Hel", "lo")) == [
        {"id": "job-1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    ]


@pytest.mark.parametrize(
    "payload",
    [
        {"openai_route": "/v1/version", "openai_input": {}},
        # A query string and escapes have no effect.
        {"openai_route": "/version?x=1"},
        {"route": "/%76ersion"},
    ],
)
async def test_a_get_request_is_answered(payload: dict[str, Any]) -> None:
    assert await run_job(payload) == [{"version": "0"}]


async def test_a_body_that_is_not_json_is_yielded_as_a_string() -> None:
    payload = {"openai_route": "/version"}
    assert await serve_parts(payload, b"met", b"ric 1\n", media_type="text/plain") == ["metric 1\n"]


async def test_a_stream_yields_whole_events_as_text_and_ends_with_done() -> None:
    yields = await run_job(STREAM, *tokens(*"Hello world"))
    events = [events_in(chunk) for chunk in yields]
    assert [len(chunk) for chunk in events] == [1, 3, 8]
    assert "".join(texts_in(item for chunk in events for item in chunk)) == "Hello world"
    assert yields[-1].endswith("data: [DONE]\n\n")
    assert ['"finish_reason":"stop"' in chunk for chunk in yields] == [False, False, True]


@pytest.mark.parametrize(("text", "event_counts"), [("Hello world", [1, 3, 7]), ("a", [1])])
async def test_a_yield_can_be_a_list_of_decoded_events(text: str, event_counts: list[int]) -> None:
    yields = await run_job(STREAM, *tokens(*text), **DECODED)
    assert [len(chunk) for chunk in yields] == event_counts
    assert "".join(texts_in(item for chunk in yields for item in chunk)) == text


EVENTS = [
    event({"choices": [{"delta": {"content": text}}]}) for text in ("é", LINE_BREAKS, "\n\n", "")
]
BODY = "".join([*EVENTS, "data: [DONE]\n\n"]).encode()


# A part of one byte, at the beginning of an event.
FIRST_BYTE = {len("".join(EVENTS[:2]).encode()) + offset for offset in (0, 1)}


@example(FIRST_BYTE, set(range(9)))
@given(st.sets(st.integers(1, len(BODY) - 1)), st.sets(st.integers(0, 9)))
@settings(max_examples=30)
def test_events_are_whole_wherever_the_body_is_split(cuts: set[int], pauses: set[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    parts = [BODY[begin:end] for begin, end in itertools.pairwise(edges)]
    yields = asyncio.run(serve_parts(STREAM, *parts, pauses=pauses))
    assert [len(events_in(chunk)) for chunk in yields] == [1, 3, 1]
    assert "".join(yields) == escape_line_breaks(BODY.decode())


MESSAGE_EVENTS = [
    f"event: {name}\ndata: {{}}\n\n"
    for name in (
        "message_start content_block_start content_block_delta content_block_delta ping"
        " content_block_stop content_block_start content_block_delta message_delta message_stop"
    ).split()
]


@given(st.sets(st.integers(0, len(MESSAGE_EVENTS))))
@example({1, 2, 6})
@settings(max_examples=30)
def test_events_keep_their_order(pauses: set[int]) -> None:
    body = {"messages": [], "max_tokens": 1, "stream": True}
    job = {"openai_route": "/v1/messages", "openai_input": body, **EXACT}
    parts = [event.encode() for event in MESSAGE_EVENTS]
    yields = asyncio.run(serve_parts(job, *parts, pauses=pauses))
    assert "".join(yields) == "".join(MESSAGE_EVENTS)


async def test_a_last_event_without_a_blank_line_is_not_lost() -> None:
    assert await serve_parts(STREAM, b"data: [DONE]") == ["data: [DONE]"]


async def test_no_yield_of_a_stream_exceeds_the_platforms_limit() -> None:
    texts = ["é" * 100_000 for _ in range(12)]  # 200 kB each
    yields = await run_job({**STREAM, "min_batch_size": 50}, *tokens(*texts))
    assert [len(events_in(chunk)) for chunk in yields] == [4, 4, 5]
    assert max(sizes(yields)) <= LIMIT


async def test_an_event_too_large_for_a_yield_ends_the_stream_with_413() -> None:
    script = tokens("a", "b" * 1_100_000, "c", pause=0.05)
    chunks, stream_error = split_stream_error(
        await run_job(chat_job(stream=True, max_batch_delay_ms=1), *script)
    )
    *events, error, done = [item for chunk in chunks for item in events_in(chunk)]
    assert texts_in(events) == ["a"]
    assert (error, done) == ({"error": stream_error}, "[DONE]")
    assert stream_error["code"] == 413
    assert "1,100," in stream_error["message"]


async def test_a_response_too_large_for_a_result_fails_with_its_size() -> None:
    (body,) = await run_job(chat_job(stream=False), *tokens("é" * 9_400_000))
    assert len(body["choices"][0]["message"]["content"]) == 9_400_000
    error = failure(await run_job(chat_job(stream=False), *tokens("é" * 9_500_001)))
    assert (error["code"], error["type"]) == (413, "RequestEntityTooLargeError")
    assert error["message"].startswith("The answer has 19,000,")
    assert "takes at most 19,000,000: ask for less: a stream" in error["message"]


async def test_an_answer_that_is_posted_as_a_chunk_has_the_limit_of_a_chunk() -> None:
    for job, environ in (
        (chat_job(stream=False), {"STREAM_WHOLE_ANSWERS": "1"}),
        ({"prompt": "Hi", "stream": True, "sampling_params": {"n": 2, "best_of": 3}}, {}),
    ):
        error = failure(await run_job(job, *tokens("é" * 500_001), **environ))
        assert error["code"] == 413
        assert "takes at most 1,000,000" in error["message"]
