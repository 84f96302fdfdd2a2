"""A local load balancing endpoint: requests go straight to workers that serve HTTP."""

import asyncio
import contextlib
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BytesIO
from typing import Self

import aiohttp
from aiohttp import web

from emulator.http.app import middlewares, require_key, set_up
from emulator.http.wire import read_body
from emulator.http.worker_port import reset
from emulator.options import BALANCED_BYTES, READ_BYTES, Options
from emulator.state.job_queue import Queue
from emulator.state.worker import Worker

AFFINITY = "X-Runpod-Worker-Id"
_READY, _STARTING = 200, 204
# Headers of one connection, which are not passed on.
_OF_CONNECTION = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "te"}
_OF_CONNECTION |= {"trailer", "upgrade", AFFINITY.lower()}


@dataclass
class _Backend:
    """A worker's port, and how many requests it is answering."""

    worker: Worker
    port: int
    requests: int = 0


class LoadBalancer:
    """Pings workers, and passes requests on to those that are healthy. An async context manager.

    ``queue`` has the workers' states, and no jobs.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.queue = Queue(options)
        self._backends: dict[str, _Backend] = {}
        self._port = options.port
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start serving.

        Raises:
            OSError: the port is taken, or the request log can't be written.
        """
        options = self.options
        first = middlewares(self._running, options.request_log)
        unlimited = aiohttp.TCPConnector(limit=0)
        self._session = await self._running.enter_async_context(
            aiohttp.ClientSession(connector=unlimited, auto_decompress=False)
        )
        app = web.Application(middlewares=first, client_max_size=READ_BYTES)
        app.router.add_route("*", "/{path:.*}", require_key(options.api_key, self._answer))
        runner = await set_up(self._running, app)
        await web.TCPSite(runner, options.host, options.port).start()
        self._port = runner.addresses[0][1]
        pinging = asyncio.create_task(self._ping_all())
        self._running.callback(pinging.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    @property
    def url(self) -> str:
        return f"http://{self.options.address}:{self._port}"

    def worker_environ(self, worker: str = "worker-1") -> dict[str, str]:
        """Return the platform's variables for a worker: its port, which nobody else has."""
        if worker not in self._backends:
            with socket.create_server((self.options.host, 0)) as bound:
                port = bound.getsockname()[1]
            self._backends[worker] = _Backend(self.queue.worker(worker), port)
        return {
            "PORT": str(self._backends[worker].port),
            "RUNPOD_POD_ID": worker,
            "RUNPOD_ENDPOINT_ID": self.options.endpoint,
        }

    async def _ping_all(self) -> None:
        while True:
            await asyncio.gather(*map(self._ping, self._backends.values()))
            await asyncio.sleep(self.options.ping_s)

    async def _ping(self, backend: _Backend) -> None:
        worker, status = backend.worker, 0
        timeout = aiohttp.ClientTimeout(total=max(1.0, self.options.ping_s))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            url = f"http://{self.options.address}:{backend.port}/ping"
            async with self._session.get(url, timeout=timeout) as answer:
                status = answer.status
        worker.pings += 1
        worker.ready = status == _READY
        worker.unhealthy = status not in (_READY, _STARTING)
        worker.changed.notify_all()
        self.queue.arrived.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, BALANCED_BYTES, 413)
        backend = await self._worker_for(request.headers.get(AFFINITY, ""))
        backend.requests += 1
        try:
            async with asyncio.timeout(self.options.processing_s):
                return await self._pass_on(request, body, backend)
        except TimeoutError:
            raise web.HTTPGatewayTimeout(text="the request took too long") from None
        except aiohttp.ClientError as error:
            raise web.HTTPBadGateway(text=f"{backend.worker.id}: {error}") from error
        finally:
            backend.requests -= 1

    async def _worker_for(self, affinity: str) -> _Backend:
        """Return the worker for a request, once one is healthy.

        Raises:
            web.HTTPNotFound: the only one that may answer is gone.
            web.HTTPBadRequest: none became healthy in time.
        """
        mode, _, named = affinity.strip().rpartition(" ")
        wait_s = self.options.strict_wait_s if mode else self.options.balanced_wait_s
        if mode and named not in self._backends:
            raise web.HTTPNotFound(text="affinity_worker_gone")

        def healthy() -> list[_Backend]:
            able = [one for one in self._backends.values() if one.worker.ready]
            wanted = [one for one in able if one.worker.id == named]
            return wanted if mode else wanted or able

        if not await self.queue.arrived.wait_for(lambda: bool(healthy()), wait_s):
            text = "timed out waiting for worker" if mode else "no workers available"
            raise web.HTTPBadRequest(text=text)
        return min(healthy(), key=lambda one: one.requests)

    async def _pass_on(
        self, request: web.Request, body: bytes, backend: _Backend
    ) -> web.StreamResponse:
        headers = [
            item for item in request.headers.items() if item[0].lower() not in _OF_CONNECTION
        ]
        url = f"http://{self.options.address}:{backend.port}{request.raw_path}"
        sending = self._session.request(
            request.method,
            url,
            data=BytesIO(body) if body else None,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with sending as answer:
            if (answer.content_length or 0) > BALANCED_BYTES:
                raise web.HTTPBadGateway(
                    text=f"the response has more than {BALANCED_BYTES:,} bytes"
                )
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _OF_CONNECTION:
                    response.headers.add(name, value)
            response.headers[AFFINITY] = backend.worker.id
            backend.worker.jobs += 1
            await response.prepare(request)
            size = 0
            async for data in answer.content.iter_any():
                size += len(data)
                if size > BALANCED_BYTES:
                    # Its status was sent long ago.
                    reset(request.transport)
                    break
                await response.write(data)
            await response.write_eof()
            return response
