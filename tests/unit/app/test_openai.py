"""The OpenAI path through the worker, up to what the SDK gets."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message
from support.engine.scripted import (
    CHAT,
    ScriptedEngine,
    broken_stream,
    chat,
    event,
    events_in,
    failure,
    texts_in,
    tokens,
    until,
    worker,
    yields_of,
)

EXACT = {"max_batch_delay_ms": 0}
DECODED = {"RAW_OPENAI_OUTPUT": "0"}
ODD = "a\u2028b\u2029c\x85d\x0be\r\nf😀"  # all that Python takes for the end of a line, and more


def serving(*parts: bytes, media_type: str = "text/event-stream", status: int = 200) -> ASGIApp:
    """Return an app that answers every request with a body in these parts."""
    headers = [(b"content-type", media_type.encode())]

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})

    return app


async def test_an_answer_that_is_not_streamed_is_the_response_body() -> None:
    with ScriptedEngine(*tokens("Hel", "lo")) as engine:
        yields = await yields_of(engine, chat(stream=False))
    message = {"role": "assistant", "content": "Hello"}
    assert yields == [
        {"id": "job-1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    ]


async def test_vllms_server_gets_the_body_that_was_sent_and_the_models_name() -> None:
    payload = chat(stream=True)
    payload["openai_input"] |= {"ключ": ["é", None], "temperature": 0.1}
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, payload)
    assert engine.asked == [payload["openai_input"] | {"model": "demo"}]


@pytest.mark.parametrize("payload", [{}, {"openai_input": None}, {"openai_input": {}}])
async def test_a_get_answers_too(payload: dict[str, Any]) -> None:
    with ScriptedEngine() as engine:
        yields = await yields_of(engine, {"openai_route": "/version", **payload})
    assert yields == [{"version": "0"}]


async def test_a_body_that_is_not_json_is_a_string() -> None:
    with ScriptedEngine(app=serving(b"met", b"ric 1\n", media_type="text/plain")) as engine:
        yields = await yields_of(engine, {"openai_route": "/version"})
    assert yields == ["metric 1\n"]


async def test_a_stream_is_text_of_whole_events_that_ends_with_done() -> None:
    with ScriptedEngine(*tokens(*"Hello world")) as engine:
        yields = await yields_of(engine, chat(stream=True, **EXACT))
    assert all(isinstance(chunk, str) for chunk in yields)
    events = [events_in(chunk) for chunk in yields]
    assert [len(chunk) for chunk in events] == [1, 3, 8]
    assert "".join(texts_in(item for chunk in events for item in chunk)) == "Hello world"
    assert yields[-1].endswith("data: [DONE]\n\n")


async def test_a_streams_finish_reason_is_in_the_last_yield_only() -> None:
    with ScriptedEngine(*tokens(*"Hello")) as engine:
        yields = await yields_of(engine, chat(stream=True, **EXACT))
    assert ['"finish_reason":"stop"' in chunk for chunk in yields] == [False, False, True]


async def test_without_raw_output_a_yield_is_a_list_of_decoded_events() -> None:
    with ScriptedEngine(*tokens(*"Hello world")) as engine:
        yields = await yields_of(engine, chat(stream=True, **EXACT), **DECODED)
    assert [len(chunk) for chunk in yields] == [1, 3, 7]  # and no mark at the end
    assert "".join(texts_in(item for chunk in yields for item in chunk)) == "Hello world"


async def test_the_closing_mark_alone_makes_no_yield_when_decoded() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        yields = await yields_of(engine, chat(stream=True, **EXACT), **DECODED)
    assert [len(chunk) for chunk in yields] == [1]


async def test_several_choices_keep_their_events() -> None:
    script = [*tokens("a", "b"), *tokens("x", index=1)]
    with ScriptedEngine(*script) as engine:
        yields = await yields_of(engine, chat(stream=True), **DECODED)
        (whole,) = await yields_of(engine, chat(stream=False))
    events = [item["choices"][0] for chunk in yields for item in chunk]
    assert [(item["index"], item["delta"]["content"]) for item in events] == [
        (0, "a"),
        (0, "b"),
        (1, "x"),
    ]
    assert [item["message"]["content"] for item in whole["choices"]] == ["ab", "x"]


@pytest.mark.parametrize("environ", [{}, DECODED], ids=["raw", "decoded"])
async def test_no_character_of_the_text_ends_an_event(environ: dict[str, str]) -> None:
    with ScriptedEngine(*tokens(ODD, ODD)) as engine:
        yields = await yields_of(engine, chat(stream=True), **environ)
    events = [item for chunk in yields for item in (events_in(chunk) if not environ else chunk)]
    assert texts_in(events) == [ODD, ODD]


EVENTS = [event({"choices": [{"delta": {"content": text}}]}) for text in ("é", ODD, "\n\n", "")]
STREAM = "".join([*EVENTS, "data: [DONE]\n\n"]).encode()


@given(st.sets(st.integers(1, len(STREAM) - 1)))
@settings(deadline=None, database=None, max_examples=30)
def test_events_are_whole_wherever_the_parts_of_the_body_are_cut(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[begin:end] for begin, end in itertools.pairwise(edges)]

    async def answer() -> list[str]:
        with ScriptedEngine(app=serving(*parts)) as engine:
            return await yields_of(engine, chat(stream=True, **EXACT))

    yields = asyncio.run(answer())
    assert [len(events_in(chunk)) for chunk in yields] == [1, 3, 1]
    assert "".join(yields) == STREAM.decode()


async def test_a_last_event_without_its_end_is_not_lost() -> None:
    with ScriptedEngine(app=serving(b"data: [DONE]")) as engine:
        assert await yields_of(engine, chat(stream=True)) == ["data: [DONE]"]


async def test_a_slow_consumer_gets_everything_in_order_in_few_yields() -> None:
    texts = [f" {number}" for number in range(150)]
    got = []
    with ScriptedEngine(*tokens(*texts)) as engine:
        async for chunk in worker(engine).handle({"id": "j", "input": chat(stream=True)}):
            got.append(chunk)
            assert await until(lambda: not engine.generating)
    events = [events_in(chunk) for chunk in got]
    assert texts_in(item for chunk in events for item in chunk) == texts
    assert len(got) <= 8
    assert max(map(len, events)) <= 50


async def test_no_yield_of_a_stream_exceeds_what_the_platform_takes() -> None:
    texts = ["é" * 100_000 for _ in range(12)]  # 200 kB each
    with ScriptedEngine(*tokens(*texts)) as engine:
        yields = await yields_of(engine, chat(stream=True, min_batch_size=50, **EXACT))
    assert [len(events_in(chunk)) for chunk in yields] == [4, 4, 5]
    assert max(len(json.dumps(chunk, ensure_ascii=False).encode()) for chunk in yields) <= 1_000_000


async def test_an_event_that_no_yield_can_hold_ends_the_stream_with_413() -> None:
    with ScriptedEngine(*tokens("a", "b" * 1_100_000, "c", pause=0.05)) as engine:
        yields = await yields_of(engine, chat(stream=True, max_batch_delay_ms=1))
    begun, failed_with = broken_stream(yields)
    events = [item for chunk in begun for item in events_in(chunk)]
    assert texts_in(events) == ["a"]
    assert events[-2]["error"] == failed_with
    assert failed_with["code"] == 413
    assert "1,100," in events[-2]["error"]["message"]
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize("unit", ["x", "é"])
async def test_an_answer_too_large_for_one_yield_fails_with_its_size(unit: str) -> None:
    with ScriptedEngine(*tokens(unit * 1_000_001)) as engine:
        error = failure(await yields_of(engine, chat(stream=False)))
    assert (error["code"], error["type"]) == (413, "RequestEntityTooLargeError")
    assert f"{1_000_001 * len(unit.encode()):,}"[:5] in error["message"]
    assert "1,000,000" in error["message"]
    assert "ask for less: a stream" in error["message"]


async def test_an_answer_that_just_fits_one_yield_is_given() -> None:
    with ScriptedEngine(*tokens("é" * 499_000)) as engine:
        (body,) = await yields_of(engine, chat(stream=False))
    assert len(body["choices"][0]["message"]["content"]) == 499_000


@pytest.mark.parametrize("route", ["/chat/completions", "v1/chat/completions/", CHAT])
async def test_a_route_is_served_with_and_without_v1(route: str) -> None:
    payload = chat(stream=False) | {"openai_route": route}
    with ScriptedEngine(*tokens("a")) as engine:
        (body,) = await yields_of(engine, payload)
    assert body["choices"][0]["message"]["content"] == "a"
