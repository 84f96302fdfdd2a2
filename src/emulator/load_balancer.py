"""A local load-balancing endpoint: requests go straight to workers that serve HTTP."""

import asyncio
import contextlib
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BytesIO
from typing import Self

import aiohttp
from aiohttp import web

from emulator.http.app import make_middlewares, require_key, set_up_runner
from emulator.http.wire import read_body, write_part
from emulator.http.worker_port import reset_connection
from emulator.job_queue import Queue, Worker
from emulator.options import MAX_LOAD_BALANCING_BYTES, MAX_READ_BYTES, Options

AFFINITY_HEADER = "X-Runpod-Worker-Id"
_READY_PING_STATUS, _STARTING_PING_STATUS = 200, 204
# Lower-case names of headers that are not forwarded, because they apply to one connection only.
_HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "te"}
_HOP_HEADERS |= {"trailer", "upgrade", AFFINITY_HEADER.lower()}


@dataclass
class _Backend:
    """A worker, its port, and the number of requests that it is answering."""

    worker: Worker
    port: int
    open_requests: int = 0


class LoadBalancer:
    """Pings workers and forwards requests to the healthy workers. An async context manager.

    ``queue`` contains only the states of the workers, and no jobs.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.queue = Queue(options)
        self._backends: dict[str, _Backend] = {}
        self._port = options.port

    async def __aenter__(self) -> Self:
        options = self.options
        async with AsyncExitStack() as stack:
            middlewares = make_middlewares(stack, options.request_log)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=connector, auto_decompress=False)
            )
            app = web.Application(middlewares=middlewares, client_max_size=MAX_READ_BYTES)
            handler = require_key(options.api_key, self._handle_request)
            app.router.add_route("*", "/{path:.*}", handler)
            runner = await set_up_runner(stack, app)
            await web.TCPSite(runner, options.host, options.port).start()
            self._port = runner.addresses[0][1]
            ping_task = asyncio.create_task(self._keep_pinging())
            stack.callback(ping_task.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        return f"http://{self.options.connect_host}:{self._port}"

    def worker_environ(self, worker_id: str = "worker-1") -> dict[str, str]:
        """Return the platform's variables for a worker; add a new worker, with a free ``PORT``."""
        if worker_id not in self._backends:
            with socket.create_server((self.options.host, 0)) as free_socket:
                port = free_socket.getsockname()[1]
            self._backends[worker_id] = _Backend(self.queue.get_worker(worker_id), port)
        return {
            "PORT": str(self._backends[worker_id].port),
            "RUNPOD_POD_ID": worker_id,
            "RUNPOD_ENDPOINT_ID": self.options.endpoint,
        }

    async def _keep_pinging(self) -> None:
        while True:
            await asyncio.gather(*map(self._ping, self._backends.values()))
            await asyncio.sleep(self.options.ping_interval_s)

    async def _ping(self, backend: _Backend) -> None:
        worker, status = backend.worker, 0
        timeout = aiohttp.ClientTimeout(total=max(1.0, self.options.ping_interval_s))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            url = f"http://{self.options.connect_host}:{backend.port}/ping"
            async with self._session.get(url, timeout=timeout) as response:
                status = response.status
        worker.pings += 1
        worker.ready = status == _READY_PING_STATUS
        worker.unhealthy = status not in (_READY_PING_STATUS, _STARTING_PING_STATUS)
        worker.changed.notify_all()
        self.queue.changed.notify_all()

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, MAX_LOAD_BALANCING_BYTES, 413)
        backend = await self._wait_for_backend(request.headers.get(AFFINITY_HEADER, ""))
        backend.open_requests += 1
        try:
            async with asyncio.timeout(self.options.forward_timeout_s):
                return await self._forward(request, body, backend)
        except TimeoutError:
            raise web.HTTPGatewayTimeout(text="the request took too long") from None
        except aiohttp.ClientError as error:
            raise web.HTTPBadGateway(text=f"{backend.worker.id}: {error}") from error
        finally:
            backend.open_requests -= 1

    async def _wait_for_backend(self, affinity: str) -> _Backend:
        """Wait for a healthy worker and return the one with the fewest open requests.

        The affinity header contains the preferred worker's id. If a mode such as ``strict``
        precedes the id, only this worker may answer.
        """
        mode, _, worker_id = affinity.strip().rpartition(" ")
        wait_s = self.options.affinity_wait_s if mode else self.options.backend_wait_s
        if mode and worker_id not in self._backends:
            raise web.HTTPNotFound(text="affinity_worker_gone")

        def list_candidates() -> list[_Backend]:
            healthy = [backend for backend in self._backends.values() if backend.worker.ready]
            preferred = [backend for backend in healthy if backend.worker.id == worker_id]
            return preferred if mode else preferred or healthy

        if not await self.queue.changed.wait_for(lambda: bool(list_candidates()), wait_s):
            text = "timed out waiting for worker" if mode else "no workers available"
            raise web.HTTPBadRequest(text=text)
        return min(list_candidates(), key=lambda backend: backend.open_requests)

    async def _forward(
        self, request: web.Request, body: bytes, backend: _Backend
    ) -> web.StreamResponse:
        headers = [item for item in request.headers.items() if item[0].lower() not in _HOP_HEADERS]
        url = f"http://{self.options.connect_host}:{backend.port}{request.raw_path}"
        upstream_request = self._session.request(
            request.method,
            url,
            data=BytesIO(body) if body else None,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with upstream_request as upstream:
            if (upstream.content_length or 0) > MAX_LOAD_BALANCING_BYTES:
                raise web.HTTPBadGateway(
                    text=f"the response has more than {MAX_LOAD_BALANCING_BYTES:,} bytes"
                )
            response = web.StreamResponse(status=upstream.status)
            for name, value in upstream.headers.items():
                if name.lower() not in _HOP_HEADERS:
                    response.headers.add(name, value)
            response.headers[AFFINITY_HEADER] = backend.worker.id
            backend.worker.jobs += 1
            await response.prepare(request)
            size = 0
            async for data in upstream.content.iter_any():
                size += len(data)
                if size > MAX_LOAD_BALANCING_BYTES:
                    # The status was already sent, so only a reset can report the error.
                    reset_connection(request.transport)
                    break
                await write_part(request, response, data)
            await response.write_eof()
            return response
