"""Completions of LLM Engine's class: at once, streamed, with asyncio and without."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from support.scripted_endpoint import ACCOUNT, HANGS, Failed, Script, only_job

from emulator import Emulator, Status
from llm_worker_client import Completion, File, FineTune, Model, configure
from llm_worker_client.llm_engine import errors

pytestmark = pytest.mark.usefixtures("configured")
ASKED: dict[str, Any] = {"model": "org/m", "prompt": "p", "max_new_tokens": 2}
OUTPUT = {"text": "a b", "num_prompt_tokens": 1, "num_completion_tokens": 2, "tokens": None}
WHOLE = {"request_id": "r", "output": OUTPUT}


def event(text: str, count: int) -> str:
    output = {"text": text, "finished": count == 2, "num_completion_tokens": count}
    return f"data: {json.dumps({'request_id': 'r', 'output': output})}\n\n"


async def check_cancelled(emulator: Emulator) -> None:
    assert (await only_job(emulator)).status is Status.CANCELLED


async def test_a_completion_is_answered_at_once(script: Script) -> None:
    script.outputs = [WHOLE]
    asked = {**ASKED, "stop_sequences": ["x"], "top_k": 3}
    plain: Any = await asyncio.to_thread(lambda: Completion.create(**asked))
    beside: Any = await Completion.acreate(**asked)
    for got in (plain, beside):
        assert got.output.text == "a b"
        assert json.loads(got.json()) == WHOLE
    sent, again = script.inputs
    assert sent == again
    assert sent["openai_route"] == "/v1/llm/completions-sync?model_endpoint_name=org%2Fm"
    assert sent["openai_input"] == {
        "prompt": "p",
        "max_new_tokens": 2,
        "temperature": 0.2,
        "stop_sequences": ["x"],
        "return_token_log_probs": False,
        "top_k": 3,
    }


async def test_a_stream_yields_each_token_with_both(script: Script) -> None:
    script.outputs = [event("a", 1), event(" b", 2)]
    plain: Any = await asyncio.to_thread(lambda: list(Completion.create(**ASKED, stream=True)))
    streamed: Any = await Completion.acreate(**ASKED, stream=True)
    for got in (plain, [response async for response in streamed]):
        found = [(each.output.text, each.output.finished) for each in got]
        assert found == [("a", False), (" b", True)]
    assert script.inputs[0]["openai_route"].startswith("/v1/llm/completions-stream?")


async def test_an_error_in_a_stream_is_its_last_event(script: Script) -> None:
    error = {"status_code": 500, "content": {"error": "dead", "timestamp": "1"}}
    last_event = f"data: {json.dumps({'request_id': 'r', 'error': error})}\n\n"
    script.outputs = [event("a", 1), last_event]
    streamed: Any = await Completion.acreate(**ASKED, stream=True)
    *_, last = [response async for response in streamed]
    assert (last.output, last.error.content.error) == (None, "dead")


@pytest.mark.parametrize(("code", "kind"), [(404, errors.NotFoundError), (503, errors.ServerError)])
async def test_errors_are_told_by_their_class(script: Script, code: int, kind: type) -> None:
    error = {"message": "why", "type": "Error", "param": None, "code": code}
    script.outputs = [Failed(json.dumps({"error": error}))]
    with pytest.raises(kind, match="why"):
        await asyncio.to_thread(Completion.create, **ASKED)
    with pytest.raises(kind, match="why"):
        await Completion.acreate(**ASKED)
    streamed: Any = await Completion.acreate(**ASKED, stream=True)
    with pytest.raises(kind, match="why"):
        await anext(aiter(streamed))
    with pytest.raises(kind, match="why"):
        await asyncio.to_thread(FineTune.get, "t")
    # The route is OpenAI's, too: the error is still LLM Engine's.
    with pytest.raises(kind, match="why") as raised:
        await asyncio.to_thread(File.get, "f")
    assert "{" not in str(raised.value)


BODY = b'{"detail": "why", "error": {}}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((code, errors.BadRequestError) for code in (400, 413)),
        (401, errors.UnauthorizedError),
        (404, errors.NotFoundError),
        (429, errors.RateLimitExceededError),
        *((code, errors.ServerError) for code in (500, 503)),
        (302, errors.UnknownError),
        (600, errors.UnknownError),
    ],
)
def test_a_status_has_its_class(status: int, kind: type[Exception]) -> None:
    error = errors.error_in(status, BODY)
    assert (type(error), "why" in str(error)) == (kind, True)


def test_a_server_error_has_its_status_where_scripts_look_for_it() -> None:
    error: Any = errors.error_in(503, BODY)
    assert (error.status_code, str(error)) == (503, "status_code=503, message='why'")


@pytest.mark.parametrize("body", [b"<html>", b'"text"', b"{}", b"[]", b"\xff"])
def test_what_is_no_error_object_is_told_as_it_is(body: bytes) -> None:
    assert str(errors.error_in(404, body)) == body.decode(errors="replace")


async def test_whoever_leaves_a_stream_cancels_its_job(script: Script, emulator: Emulator) -> None:
    script.outputs = [event("a", 1), HANGS]

    def leave() -> None:
        streamed: Any = Completion.create(**ASKED, stream=True)
        assert next(iter(streamed)).output.text == "a"

    await asyncio.to_thread(leave)
    await check_cancelled(emulator)


async def test_a_completion_that_times_out_is_cancelled(
    script: Script, emulator: Emulator, let_time_pass: Callable[[], None]
) -> None:
    script.outputs = [HANGS]
    asking = asyncio.create_task(Completion.acreate(**ASKED, timeout=60))
    await only_job(emulator)
    let_time_pass()
    with pytest.raises(TimeoutError):
        await asking
    await check_cancelled(emulator)


async def test_headers_are_refused_by_name(script: Script) -> None:
    with pytest.raises(errors.BadRequestError, match="request_headers"):
        Completion.create(**ASKED, request_headers={"a": "b"})
    with pytest.raises(errors.BadRequestError, match="request_headers"):
        Model.get("m", request_headers={"a": "b"})
    assert script.inputs == []


async def test_the_environment_names_the_endpoint(
    script: Script, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(None, ACCOUNT, emulator.api_url)
    script.outputs = [WHOLE]
    with pytest.raises(errors.BadRequestError, match="RUNPOD_ENDPOINT_ID"):
        await Completion.acreate(**ASKED)
    monkeypatch.setenv("RUNPOD_ENDPOINT_ID", "local")
    got: Any = await Completion.acreate(**ASKED)
    assert got.request_id == "r"


# They share a connection, and leave nothing behind when their loop ends:


def connections(emulator: Emulator) -> set[int]:
    """Return the ports of this process that are connected to the emulator."""
    port = urlsplit(emulator.api_url).port
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.raddr and one.raddr.port == port}


async def in_a_loop_of_its_own(calls: Any) -> Any:
    return await asyncio.to_thread(lambda: asyncio.run(calls()))


async def test_calls_of_a_loop_share_one_connection(script: Script, emulator: Emulator) -> None:
    script.outputs = [WHOLE]

    async def calls() -> list[set[int]]:
        found = []
        for _ in range(3):
            await Completion.acreate(**ASKED)
            found.append(connections(emulator))
        return found

    before = connections(emulator)
    first, second, third = await in_a_loop_of_its_own(calls)
    assert first == second == third
    assert len(first - before) == 1
    assert connections(emulator) <= before
    # Another loop has one of its own.
    again, *_ = await in_a_loop_of_its_own(calls)
    assert (len(again - before), bool(again & first)) == (1, False)


async def test_a_stream_that_a_loop_leaves_is_cancelled(script: Script, emulator: Emulator) -> None:
    script.outputs = [event("a", 1), HANGS]

    async def calls() -> None:
        stream: Any = await Completion.acreate(**ASKED, stream=True)
        assert (await anext(aiter(stream))).output.text == "a"

    before = connections(emulator)
    await in_a_loop_of_its_own(calls)
    await check_cancelled(emulator)
    assert connections(emulator) <= before


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_task_cancels_its_job(
    script: Script, emulator: Emulator, stream: bool
) -> None:
    script.outputs = [HANGS]

    async def read() -> None:
        answer: Any = await Completion.acreate(**ASKED, stream=stream)
        async for _ in answer:
            pass

    async def calls() -> None:
        reading = asyncio.create_task(read())
        while not script.inputs:
            await asyncio.sleep(0.01)
        # One that reads has its id, one that has just sent it gets it from the answer.
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    await in_a_loop_of_its_own(calls)
    await check_cancelled(emulator)


async def test_the_next_call_goes_where_configured(script: Script, emulator: Emulator) -> None:
    script.outputs = [WHOLE]
    configure("local", ACCOUNT, "http://127.0.0.1:9/v2")

    async def calls() -> list[Any]:
        found = list[Any]()
        for _ in range(2):
            configure("local", ACCOUNT, emulator.api_url)
            found.append(await Completion.acreate(**ASKED))
        return [answer.output.text for answer in found]

    assert await in_a_loop_of_its_own(calls) == ["a b"] * 2
