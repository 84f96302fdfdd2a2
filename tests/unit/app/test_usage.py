"""A job's record: the tokens of its answer, wherever they are counted."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.records import ID, lines, record_of
from support.engine.scripted import (
    PROMPT_TOKENS,
    ScriptedEngine,
    chat,
    event,
    raw,
    replying,
    tokens,
    worker,
    yields_of,
)

from worker.errors import EngineDead
from worker.record import JobRecord


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="worker"):
        yield


def used(record: JobRecord) -> tuple[int | None, int | None]:
    return record.usage.prompt_tokens, record.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tokens_of_all_choices_of_a_raw_job_are_summed(stream: bool) -> None:
    payload = raw(stream=stream, sampling_params={"n": 2})
    with ScriptedEngine(*tokens("a", "b"), *tokens("x", "y", "z", index=1)) as engine:
        assert used(await record_of(engine, payload)) == (PROMPT_TOKENS, 5)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tokens_of_all_items_of_a_list_are_summed(stream: bool) -> None:
    payload = {"prompts": ["a", 7, "c"], "stream": stream}
    with ScriptedEngine(*tokens("a", "b")) as engine:
        assert used(await record_of(engine, payload)) == (2 * PROMPT_TOKENS, 4)


@pytest.mark.parametrize("payload", [raw(stream=False), raw(stream=True), {"prompts": ["a"]}])
@pytest.mark.parametrize(
    ("end", "params", "cut"),
    [("length", {}, True), ("length", {"max_tokens": 2}, False), ("stop", {}, False)],
)
async def test_an_answer_that_ended_at_the_default_length_is_told(
    payload: dict[str, Any],
    end: str,
    params: dict[str, Any],
    cut: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedEngine(*tokens("a", "b", finish=end)) as engine:
        await yields_of(engine, {**payload, "sampling_params": params})
    (line,) = lines(caplog)
    assert line.get("cut_by") == ("DEFAULT_MAX_TOKENS" if cut else None)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tokens_that_vllms_server_counts_are_the_records(stream: bool) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        assert used(await record_of(engine, chat(stream=stream))) == (None, None)
        engine.counted = 31, 212
        assert used(await record_of(engine, chat(stream=stream))) == (31, 212)


EMBEDDED = {"usage": {"prompt_tokens": 5, "total_tokens": 5}}
RESPONSE = {"usage": {"input_tokens": 5, "output_tokens": 7}}


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        ("/v1/embeddings", EMBEDDED, (5, None)),
        ("/v1/embeddings", {"usage": {"prompt_tokens": 5, "completion_tokens": 0}}, (5, 0)),
        ("/v1/responses", RESPONSE, (5, 7)),
        ("/v1/responses", {"usage": None}, (None, None)),
        ("/v1/messages/count_tokens", {"input_tokens": 5}, (None, None)),
    ],
)
async def test_tokens_are_read_from_a_body_that_has_them(
    route: str, body: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    with ScriptedEngine(app=replying(json.dumps(body))) as engine:
        engine.bodies = {route: frozenset({"model"})}
        payload = {"openai_route": route, "openai_input": {"model": "demo"}}
        assert used(await record_of(engine, payload)) == expected


@pytest.mark.parametrize("environ", [{}, {"RAW_OPENAI_OUTPUT": "0"}])
async def test_tokens_are_read_from_the_event_that_ends_a_response(environ: dict[str, str]) -> None:
    named: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": {}}),
        ("completed", {"response": RESPONSE}),
    ]
    events = [f"event: response.{name}\n{event(data)}" for name, data in named]
    app = replying(*events, media_type="text/event-stream")
    record = JobRecord(ID)
    body = {"input": "Hi", "stream": True}
    payload = {"openai_route": "/v1/responses", "openai_input": body}
    with ScriptedEngine(app=app) as engine:
        job = {"id": ID, "input": payload}
        yields = [chunk async for chunk in worker(engine, **environ).handle(job, record)]
    assert used(record) == (5, 7)
    (only,) = yields
    assert only == "".join(events) if not environ else len(only) == 2


async def test_a_broken_stream_has_the_tokens_until_then() -> None:
    with ScriptedEngine(*tokens("a", "b", finish=None), EngineDead()) as engine:
        record = await record_of(engine, raw(stream=True))
    assert (record.status, *used(record)) == (503, PROMPT_TOKENS, 2)
