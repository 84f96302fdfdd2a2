"""Servers on this machine: one that nothing may reach, and one that plays the internet."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.internet import Canary
from support.media import FILE


@pytest.fixture
async def canary() -> AsyncGenerator[Canary, None]:
    hits: list[str] = []

    async def hit(request: web.Request) -> web.Response:
        hits.append(str(request.url))
        return web.Response(text="secret", content_type="image/png")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", hit)
    async with TestServer(app, host="127.0.0.1") as server:
        assert server.port is not None
        yield Canary(server.port, hits)


@pytest.fixture
async def serve() -> AsyncGenerator[Any, None]:
    """A host of the internet, which lies at 127.0.0.9 for these tests."""
    answers: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        found = answers[int(request.match_info["index"])]
        response: web.StreamResponse = await found(request)
        return response

    app = web.Application()
    app.router.add_get("/{index}", answer)
    async with TestServer(app, host="127.0.0.9") as server:

        def serve(body: bytes = FILE, type_: str = "image/png", **more: Any) -> str:
            async def whole(_: web.Request) -> web.StreamResponse:
                return web.Response(body=body, content_type=type_, **more)

            return add(whole)

        def add(handler: Any) -> str:
            answers.append(handler)
            return f"http://host.example:{server.port}/{len(answers) - 1}"

        serve.by = add  # type: ignore[attr-defined]  # for tests that answer by themselves
        yield serve
