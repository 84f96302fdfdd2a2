"""Completions of LLM Engine's class: at once, streamed, with asyncio and without."""

import asyncio
import json
from typing import Any

import pytest
from support.deployed import ACCOUNT, HANGS, Failed, Scripted

from emulator import Emulator, Status
from llm_worker_client import Completion, FineTune, Model, configure
from llm_worker_client.llm_engine import errors

ASKED: dict[str, Any] = {"model": "org/m", "prompt": "p", "max_new_tokens": 2}
OUTPUT = {"text": "a b", "num_prompt_tokens": 1, "num_completion_tokens": 2, "tokens": None}
WHOLE = {"request_id": "r", "output": OUTPUT}


def event(text: str, count: int) -> str:
    output = {"text": text, "finished": count == 2, "num_completion_tokens": count}
    return f"data: {json.dumps({'request_id': 'r', 'output': output})}\n\n"


def failed(code: int) -> Failed:
    error = {"message": "why", "type": "Error", "param": None, "code": code}
    return Failed(json.dumps({"error": error}))


async def both(asked: dict[str, Any]) -> list[Any]:
    """Return what the class answers without asyncio, and with it."""
    return [await asyncio.to_thread(Completion.create, **asked), await Completion.acreate(**asked)]


async def test_a_completion_is_answered_at_once(endpoint: Scripted) -> None:
    endpoint.yields = [WHOLE]
    for got in await both({**ASKED, "stop_sequences": ["x"], "top_k": 3}):
        assert got.output.text == "a b"
        assert json.loads(got.json()) == WHOLE
    sent, again = endpoint.given
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


async def test_a_stream_yields_each_token_with_both(endpoint: Scripted) -> None:
    endpoint.yields = [event("a", 1), event(" b", 2)]
    plain: Any = await asyncio.to_thread(lambda: list(Completion.create(**ASKED, stream=True)))
    streamed: Any = await Completion.acreate(**ASKED, stream=True)
    for got in (plain, [response async for response in streamed]):
        assert [(each.output.text, each.output.finished) for each in got] == [
            ("a", False),
            (" b", True),
        ]
    assert endpoint.given[0]["openai_route"].startswith("/v1/llm/completions-stream?")


async def test_an_error_in_a_stream_is_its_last_event(endpoint: Scripted) -> None:
    error = {"status_code": 500, "content": {"error": "dead", "timestamp": "1"}}
    endpoint.yields = [
        event("a", 1),
        f"data: {json.dumps({'request_id': 'r', 'error': error})}\n\n",
    ]
    streamed: Any = await Completion.acreate(**ASKED, stream=True)
    *_, last = [response async for response in streamed]
    assert last.output is None
    assert last.error.content.error == "dead"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, errors.BadRequestError),
        (413, errors.BadRequestError),
        (404, errors.NotFoundError),
        (429, errors.RateLimitExceededError),
        (503, errors.ServerError),
    ],
)
async def test_errors_are_told_by_their_class(endpoint: Scripted, code: int, kind: type) -> None:
    endpoint.yields = [failed(code)]
    with pytest.raises(kind, match="why"):
        await asyncio.to_thread(Completion.create, **ASKED)
    with pytest.raises(kind, match="why"):
        await Completion.acreate(**ASKED)
    streamed: Any = await Completion.acreate(**ASKED, stream=True)
    with pytest.raises(kind, match="why"):
        await anext(aiter(streamed))
    with pytest.raises(kind, match="why"):
        await asyncio.to_thread(FineTune.get, "t")


async def test_a_wrong_key_is_unauthorized(emulator: Emulator) -> None:
    configure("local", "rpa_wrong", emulator.api_url)
    with pytest.raises(errors.UnauthorizedError):
        await Completion.acreate(**ASKED)


async def test_a_caller_that_leaves_a_stream_cancels_its_job(
    endpoint: Scripted, emulator: Emulator
) -> None:
    endpoint.yields = [event("a", 1), HANGS]

    def leave() -> None:
        streamed: Any = Completion.create(**ASKED, stream=True)
        assert next(iter(streamed)).output.text == "a"

    await asyncio.to_thread(leave)
    (job,) = emulator.queue.jobs.values()
    assert job.status is Status.CANCELLED


async def test_a_completion_that_takes_too_long_is_cancelled(
    endpoint: Scripted, emulator: Emulator
) -> None:
    endpoint.yields = [HANGS]
    with pytest.raises(TimeoutError):
        await Completion.acreate(**ASKED, timeout=1)
    (job,) = emulator.queue.jobs.values()
    assert job.status is Status.CANCELLED


async def test_headers_are_refused_by_name(endpoint: Scripted) -> None:
    with pytest.raises(errors.BadRequestError, match="request_headers"):
        Completion.create(**ASKED, request_headers={"a": "b"})
    with pytest.raises(errors.BadRequestError, match="request_headers"):
        Model.get("m", request_headers={"a": "b"})
    assert endpoint.given == []


async def test_the_environment_names_the_endpoint(
    endpoint: Scripted, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(None, ACCOUNT, emulator.api_url)
    endpoint.yields = [WHOLE]
    with pytest.raises(errors.BadRequestError, match="RUNPOD_ENDPOINT_ID"):
        await Completion.acreate(**ASKED)
    monkeypatch.setenv("RUNPOD_ENDPOINT_ID", "local")
    got: Any = await Completion.acreate(**ASKED)
    assert got.request_id == "r"
