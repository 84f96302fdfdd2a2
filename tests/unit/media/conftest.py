"""Servers on this machine: one that nothing may reach, and one that plays the internet."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.media import FILE
from support.network import LocalServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def local() -> AsyncGenerator[LocalServer, None]:
    hits: list[str] = []

    async def hit(request: web.Request) -> web.Response:
        hits.append(str(request.url))
        return web.Response(text="secret", content_type="image/png")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", hit)
    async with TestServer(app, host="127.0.0.1") as server:
        assert server.port is not None
        yield LocalServer(server.port, hits)


class Host:
    """A host of the internet, which lies at 127.0.0.9 for these tests. It returns URLs."""

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        # How many requests have no answer, and never get one.
        self.unanswered = 0
        app = web.Application()
        app.router.add_get("/{index}", self._answer)
        self.server = TestServer(app, host="127.0.0.9")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return await self._handlers[int(request.match_info["index"])](request)

    def __call__(self, body: bytes = FILE, type_: str = "image/png", **more: Any) -> str:
        return self.by(lambda: web.Response(body=body, content_type=type_, **more))

    def redirect(self, location: str, status: int = 302) -> str:
        return self.by(lambda: web.Response(status=status, headers={"Location": location}))

    def silent(self) -> str:
        async def wait(_: web.Request) -> web.StreamResponse:
            self.unanswered += 1
            await asyncio.Event().wait()
            raise AssertionError

        return self.handled_by(wait)

    def by(self, response: Callable[[], web.Response]) -> str:
        async def respond(_: web.Request) -> web.StreamResponse:
            return response()

        return self.handled_by(respond)

    def handled_by(self, handler: Handler) -> str:
        self._handlers.append(handler)
        return f"http://host.example:{self.server.port}/{len(self._handlers) - 1}"


@pytest.fixture
async def media_host() -> AsyncGenerator[Host, None]:
    host = Host()
    async with host.server:
        yield host
