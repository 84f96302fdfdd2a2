"""Fixtures: an engine that echoes prompts, and a caller of its worker."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.caller import Caller
from support.engine.scripted import ScriptedEngine


@pytest.fixture
def echo_engine(engine: ScriptedEngine) -> ScriptedEngine:
    """An engine that returns every prompt as its completion, but refuses the prompt "refused"."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo", "parent": None}]})

    async def complete(request: Request) -> Response:
        body = await request.json()
        engine.requests.append(body)
        if body.get("prompt") == "refused":
            return JSONResponse({"error": {"message": "too long", "code": 400}}, 400)
        choice = {"index": 0, "text": body.get("prompt"), "logprobs": None}
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        return JSONResponse({"choices": [choice], "usage": usage})

    posts = [
        Route(f"/v1/{path}", complete, methods=["POST"])
        for path in ("completions", "chat/completions")
    ]
    engine.app = Starlette(routes=[Route("/v1/models", models), *posts])
    engine.adapters = ["tuned"]
    return engine


@pytest.fixture
def caller(echo_engine: ScriptedEngine, tmp_path: Path) -> Caller:
    return Caller(echo_engine, tmp_path)
