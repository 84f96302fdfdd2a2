"""Fixtures: a server that must not be reached, and a server in place of an internet host."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.media import IMAGE
from support.network import LocalServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def local_server() -> AsyncGenerator[LocalServer, None]:
    """A server on the loopback interface that must not be reached."""
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
    """An internet host, at 127.0.0.9 in these tests. Its methods return URLs."""

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        # Requests that never get a response.
        self.pending_requests = 0
        app = web.Application()
        app.router.add_get("/{index}", self._answer)
        self.server = TestServer(app, host="127.0.0.9")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return await self._handlers[int(request.match_info["index"])](request)

    def __call__(self, body: bytes = IMAGE, media_type: str = "image/png", **more: Any) -> str:
        return self.serve_response(lambda: web.Response(body=body, content_type=media_type, **more))

    def redirect(self, location: str, status: int = 302) -> str:
        return self.serve_response(
            lambda: web.Response(status=status, headers={"Location": location})
        )

    def serve_nothing(self) -> str:
        async def wait(_: web.Request) -> web.StreamResponse:
            self.pending_requests += 1
            await asyncio.Event().wait()
            raise AssertionError

        return self.serve(wait)

    def serve_response(self, response: Callable[[], web.Response]) -> str:
        async def respond(_: web.Request) -> web.StreamResponse:
            return response()

        return self.serve(respond)

    def serve(self, handler: Handler) -> str:
        self._handlers.append(handler)
        return f"http://host.example:{self.server.port}/{len(self._handlers) - 1}"


@pytest.fixture
async def media_host() -> AsyncGenerator[Host, None]:
    host = Host()
    async with host.server:
        yield host
