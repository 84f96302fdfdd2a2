"""Completions of LLM Engine's class: whole and streamed, with and without asyncio."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from support.scripted_endpoint import ACCOUNT, HANG, JobFailure, Script, only_job

from emulator import Emulator, Status
from llm_worker_client import Completion, File, FineTune, Model, configure
from llm_worker_client.llm_engine import errors

pytestmark = pytest.mark.usefixtures("configure_classes")
ARGUMENTS: dict[str, Any] = {"model": "org/m", "prompt": "p", "max_new_tokens": 2}
OUTPUT = {"text": "a b", "num_prompt_tokens": 1, "num_completion_tokens": 2, "tokens": None}
RESPONSE = {"request_id": "r", "output": OUTPUT}


def event(text: str, count: int) -> str:
    output = {"text": text, "finished": count == 2, "num_completion_tokens": count}
    return f"data: {json.dumps({'request_id': 'r', 'output': output})}\n\n"


async def check_cancelled(emulator: Emulator) -> None:
    assert (await only_job(emulator)).status is Status.CANCELLED


async def test_a_completion_is_returned_whole(script: Script) -> None:
    script.outputs = [RESPONSE]
    arguments = {**ARGUMENTS, "stop_sequences": ["x"], "top_k": 3}
    sync_response: Any = await asyncio.to_thread(lambda: Completion.create(**arguments))
    async_response: Any = await Completion.acreate(**arguments)
    for got in (sync_response, async_response):
        assert got.output.text == "a b"
        assert json.loads(got.json()) == RESPONSE
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


async def test_both_methods_stream_each_token(script: Script) -> None:
    script.outputs = [event("a", 1), event(" b", 2)]
    responses: Any = await asyncio.to_thread(
        lambda: list(Completion.create(**ARGUMENTS, stream=True))
    )
    streamed: Any = await Completion.acreate(**ARGUMENTS, stream=True)
    for got in (responses, [response async for response in streamed]):
        found = [(each.output.text, each.output.finished) for each in got]
        assert found == [("a", False), (" b", True)]
    assert script.inputs[0]["openai_route"].startswith("/v1/llm/completions-stream?")


async def test_an_error_in_a_stream_is_its_last_event(script: Script) -> None:
    error = {"status_code": 500, "content": {"error": "dead", "timestamp": "1"}}
    last_event = f"data: {json.dumps({'request_id': 'r', 'error': error})}\n\n"
    script.outputs = [event("a", 1), last_event]
    streamed: Any = await Completion.acreate(**ARGUMENTS, stream=True)
    *_, last = [response async for response in streamed]
    assert (last.output, last.error.content.error) == (None, "dead")


@pytest.mark.parametrize(("code", "kind"), [(404, errors.NotFoundError), (503, errors.ServerError)])
async def test_the_code_of_an_error_determines_its_class(
    script: Script, code: int, kind: type
) -> None:
    error = {"message": "why", "type": "Error", "param": None, "code": code}
    script.outputs = [JobFailure(json.dumps({"error": error}))]
    with pytest.raises(kind, match="why"):
        await asyncio.to_thread(Completion.create, **ARGUMENTS)
    with pytest.raises(kind, match="why"):
        await Completion.acreate(**ARGUMENTS)
    streamed: Any = await Completion.acreate(**ARGUMENTS, stream=True)
    with pytest.raises(kind, match="why"):
        await anext(aiter(streamed))
    with pytest.raises(kind, match="why"):
        await asyncio.to_thread(FineTune.get, "t")
    # The route is also OpenAI's, but the error is still LLM Engine's.
    with pytest.raises(kind, match="why") as raised:
        await asyncio.to_thread(File.get, "f")
    assert "{" not in str(raised.value)


BODY = b'{"detail": "why", "error": {}}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequestError),
        (413, errors.BadRequestError),
        (401, errors.UnauthorizedError),
        (404, errors.NotFoundError),
        (429, errors.RateLimitExceededError),
        (503, errors.ServerError),
        (302, errors.UnknownError),
        (600, errors.UnknownError),
    ],
)
def test_a_status_has_its_error_class(status: int, kind: type[Exception]) -> None:
    error = errors.error_from_response(status, BODY)
    text = f"status_code={status}, message='why'" if kind is errors.ServerError else "why"
    assert (type(error), str(error)) == (kind, text)
    assert getattr(error, "status_code", status) == status


@pytest.mark.parametrize("body", [b"<html>", b'"text"', b"{}", b"[]", b"\xff"])
def test_a_body_without_an_error_object_becomes_the_message(body: bytes) -> None:
    assert str(errors.error_from_response(404, body)) == body.decode(errors="replace")


async def test_leaving_a_stream_cancels_its_job(script: Script, emulator: Emulator) -> None:
    script.outputs = [event("a", 1), HANG]

    def leave() -> None:
        streamed: Any = Completion.create(**ARGUMENTS, stream=True)
        assert next(iter(streamed)).output.text == "a"

    await asyncio.to_thread(leave)
    await check_cancelled(emulator)


async def test_a_completion_that_times_out_is_cancelled(
    script: Script, emulator: Emulator, let_time_pass: Callable[[], None]
) -> None:
    script.outputs = [HANG]
    asking = asyncio.create_task(Completion.acreate(**ARGUMENTS, timeout=60))
    await only_job(emulator)
    let_time_pass()
    with pytest.raises(TimeoutError):
        await asking
    await check_cancelled(emulator)


async def test_request_headers_are_refused_by_name(script: Script) -> None:
    with pytest.raises(errors.BadRequestError, match="request_headers"):
        Completion.create(**ARGUMENTS, request_headers={"a": "b"})
    with pytest.raises(errors.BadRequestError, match="request_headers"):
        Model.get("m", request_headers={"a": "b"})
    assert script.inputs == []


async def test_the_environment_names_the_endpoint(
    script: Script, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(None, ACCOUNT, emulator.api_url)
    script.outputs = [RESPONSE]
    with pytest.raises(errors.BadRequestError, match="RUNPOD_ENDPOINT_ID"):
        await Completion.acreate(**ARGUMENTS)
    monkeypatch.setenv("RUNPOD_ENDPOINT_ID", "local")
    got: Any = await Completion.acreate(**ARGUMENTS)
    assert got.request_id == "r"


# Calls of a loop share a connection and leave nothing behind when the loop ends:


def connections(emulator: Emulator) -> set[int]:
    """Return the ports of this process that are connected to the emulator."""
    port = urlsplit(emulator.api_url).port
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.raddr and one.raddr.port == port}


async def run_in_new_loop(calls: Any) -> Any:
    return await asyncio.to_thread(lambda: asyncio.run(calls()))


async def test_calls_of_a_loop_share_one_connection(script: Script, emulator: Emulator) -> None:
    script.outputs = [RESPONSE]

    async def calls() -> list[set[int]]:
        found = []
        for _ in range(3):
            await Completion.acreate(**ARGUMENTS)
            found.append(connections(emulator))
        return found

    before = connections(emulator)
    first, second, third = await run_in_new_loop(calls)
    assert first == second == third
    assert len(first - before) == 1
    assert connections(emulator) <= before
    # Another loop opens its own connection.
    again, *_ = await run_in_new_loop(calls)
    assert (len(again - before), bool(again & first)) == (1, False)


async def test_a_stream_is_cancelled_when_its_loop_ends(script: Script, emulator: Emulator) -> None:
    script.outputs = [event("a", 1), HANG]

    async def calls() -> None:
        stream: Any = await Completion.acreate(**ARGUMENTS, stream=True)
        assert (await anext(aiter(stream))).output.text == "a"

    before = connections(emulator)
    await run_in_new_loop(calls)
    await check_cancelled(emulator)
    assert connections(emulator) <= before


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_task_cancels_its_job(
    script: Script, emulator: Emulator, stream: bool
) -> None:
    script.outputs = [HANG]

    async def read() -> None:
        answer: Any = await Completion.acreate(**ARGUMENTS, stream=stream)
        async for _ in answer:
            pass

    async def calls() -> None:
        reading = asyncio.create_task(read())
        while not script.inputs:
            await asyncio.sleep(0.01)
        # A task that reads knows the job's id; one that has just submitted it gets the id later.
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    await run_in_new_loop(calls)
    await check_cancelled(emulator)


async def test_the_next_call_uses_the_current_configuration(
    script: Script, emulator: Emulator
) -> None:
    script.outputs = [RESPONSE]
    configure("local", ACCOUNT, "http://127.0.0.1:9/v2")

    async def calls() -> list[Any]:
        found = list[Any]()
        for _ in range(2):
            configure("local", ACCOUNT, emulator.api_url)
            found.append(await Completion.acreate(**ARGUMENTS))
        return [answer.output.text for answer in found]

    assert await run_in_new_loop(calls) == ["a b"] * 2
