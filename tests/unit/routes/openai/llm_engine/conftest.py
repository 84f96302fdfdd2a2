"""A worker whose engine answers prompts with themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.batches import worker_at
from support.engine.scripted import ScriptedEngine
from support.llm_engine_batches import REFUSED

from worker.app import Worker


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine that answers prompts with themselves."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo", "parent": None}]})

    async def complete(request: Request) -> Response:
        body = await request.json()
        answering.asked.append(body)
        if body.get("prompt") == REFUSED:
            return JSONResponse({"error": {"message": "too long", "code": 400}}, 400)
        choice = {"index": 0, "text": body.get("prompt"), "logprobs": None}
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        return JSONResponse({"choices": [choice], "usage": usage})

    routes = [
        Route("/v1/models", models),
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/chat/completions", complete, methods=["POST"]),
    ]
    with ScriptedEngine(app=Starlette(routes=routes)) as answering:
        answering.adapters = ["tuned"]
        yield answering


@pytest.fixture
def worker(engine: ScriptedEngine, tmp_path: Path) -> Worker:
    return worker_at(tmp_path, engine)
