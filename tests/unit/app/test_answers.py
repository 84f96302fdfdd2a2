"""Answers of the raw and of the OpenAI path, up to what the SDK gets."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message
from support.engine.answers import EXACT, LIMIT, Details, answered, every_form, sizes
from support.engine.scripted import HANG, ScriptedEngine, chat, raw, tokens, worker, yields_of
from support.engine.server import event
from support.engine.yields import broken_stream, events_in, failure, texts_in

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


# The OpenAI path:

DECODED = {"RAW_OPENAI_OUTPUT": "0"}
STREAM = chat(stream=True, **EXACT)
ODD = "a\u2028b\u2029c\x85d\x0be\r\nf😀"  # all that Python takes for the end of a line, and more


async def served(
    payload: dict[str, Any], *parts: bytes, media_type: str = "text/event-stream"
) -> list[Any]:
    """Return the yields of a job whose request is answered with a body in these parts."""
    headers = [(b"content-type", media_type.encode())]

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})

    with ScriptedEngine(app=app) as engine:
        return await yields_of(engine, payload)


async def test_an_answer_that_is_not_streamed_is_the_response_body() -> None:
    message = {"role": "assistant", "content": "Hello"}
    assert await answered(chat(stream=False), *tokens("Hel", "lo")) == [
        {"id": "job-1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    ]


@pytest.mark.parametrize(
    "payload",
    [
        {"openai_route": "/v1/version", "openai_input": {}},
        # A query string and escapes change nothing.
        {"openai_route": "/version?x=1"},
        {"route": "/%76ersion"},
    ],
)
async def test_a_get_answers_too(payload: dict[str, Any]) -> None:
    assert await answered(payload) == [{"version": "0"}]


async def test_a_body_that_is_not_json_is_a_string() -> None:
    payload = {"openai_route": "/version"}
    assert await served(payload, b"met", b"ric 1\n", media_type="text/plain") == ["metric 1\n"]


async def test_a_stream_is_text_of_whole_events_that_ends_with_done() -> None:
    yields = await answered(STREAM, *tokens(*"Hello world"))
    events = [events_in(chunk) for chunk in yields]
    assert [len(chunk) for chunk in events] == [1, 3, 8]
    assert "".join(texts_in(item for chunk in events for item in chunk)) == "Hello world"
    assert yields[-1].endswith("data: [DONE]\n\n")
    assert ['"finish_reason":"stop"' in chunk for chunk in yields] == [False, False, True]


@pytest.mark.parametrize(("text", "lengths"), [("Hello world", [1, 3, 7]), ("a", [1])])
async def test_a_yield_can_be_a_list_of_decoded_events(text: str, lengths: list[int]) -> None:
    yields = await answered(STREAM, *tokens(*text), **DECODED)
    assert [len(chunk) for chunk in yields] == lengths
    assert "".join(texts_in(item for chunk in yields for item in chunk)) == text


async def test_no_character_of_the_text_ends_an_event() -> None:
    yields = await answered(STREAM, *tokens(ODD, ODD), **DECODED)
    assert texts_in(item for chunk in yields for item in chunk) == [ODD, ODD]


EVENTS = [event({"choices": [{"delta": {"content": text}}]}) for text in ("é", ODD, "\n\n", "")]
BODY = "".join([*EVENTS, "data: [DONE]\n\n"]).encode()


@given(st.sets(st.integers(1, len(BODY) - 1)))
@settings(max_examples=30)
def test_events_are_whole_wherever_the_parts_of_the_body_are_cut(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    parts = [BODY[begin:end] for begin, end in itertools.pairwise(edges)]
    yields = asyncio.run(served(STREAM, *parts))
    assert [len(events_in(chunk)) for chunk in yields] == [1, 3, 1]
    assert "".join(yields) == BODY.decode()


async def test_a_last_event_without_its_end_is_not_lost() -> None:
    assert await served(STREAM, b"data: [DONE]") == ["data: [DONE]"]


async def test_no_yield_of_a_stream_exceeds_what_the_platform_takes() -> None:
    texts = ["é" * 100_000 for _ in range(12)]  # 200 kB each
    yields = await answered({**STREAM, "min_batch_size": 50}, *tokens(*texts))
    assert [len(events_in(chunk)) for chunk in yields] == [4, 4, 5]
    assert max(sizes(yields)) <= LIMIT


async def test_an_event_that_no_yield_can_hold_ends_the_stream_with_413() -> None:
    script = tokens("a", "b" * 1_100_000, "c", pause=0.05)
    begun, failed_with = broken_stream(
        await answered(chat(stream=True, max_batch_delay_ms=1), *script)
    )
    *events, error, done = [item for chunk in begun for item in events_in(chunk)]
    assert texts_in(events) == ["a"]
    assert (error, done) == ({"error": failed_with}, "[DONE]")
    assert failed_with["code"] == 413
    assert "1,100," in failed_with["message"]


async def test_an_answer_too_large_for_one_yield_fails_with_its_size() -> None:
    (body,) = await answered(chat(stream=False), *tokens("é" * 499_000))
    assert len(body["choices"][0]["message"]["content"]) == 499_000
    error = failure(await answered(chat(stream=False), *tokens("é" * 1_000_001)))
    assert (error["code"], error["type"]) == (413, "RequestEntityTooLargeError")
    assert error["message"].startswith("The answer has 2,000,")
    assert "one yield holds 1,000,000: ask for less: a stream" in error["message"]
