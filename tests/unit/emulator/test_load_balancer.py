"""The load balancing endpoint: health, the choice of a worker, and limits."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.job_loops import serve_routes
from support.processes.background import HUNG_S

from emulator import Options
from emulator.load_balancer import AFFINITY_HEADER, LoadBalancer


@dataclass
class ServingWorker:
    """A worker's server that responds with the request it got."""

    id: str
    ping: int = 200
    slow_request_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/ping":
            return web.Response(status=self.ping)
        if request.path == "/slow":
            self.slow_request_arrived.set()
            await self.released.wait()
        if request.path == "/large":
            return web.Response(body=BytesIO(bytes(31_000_000)))
        request_fields = {
            "method": request.method,
            "path": request.path_qs,
            "body": await request.text(),
        }
        request_fields["key"] = request.headers.get("Authorization", "")
        return web.json_response(
            {"worker": self.id, **request_fields}, status=201, headers={"x-own": "1"}
        )


@dataclass
class BalancedEndpoint:
    """A load balancing endpoint with workers, and a session for its callers."""

    workers: dict[str, ServingWorker]
    session: aiohttp.ClientSession

    async def ask(self, path: str = "/v1/models", affinity: str = "") -> tuple[int, Any, str]:
        """Return the status, the body, and the name of the worker that answered."""
        async with self.session.get(path, headers={AFFINITY_HEADER: affinity}) as answer:
            return answer.status, await answer.json(), answer.headers.get(AFFINITY_HEADER, "")


@asynccontextmanager
async def start_load_balancer(count: int = 2, **options: Any) -> AsyncIterator[BalancedEndpoint]:
    async with AsyncExitStack() as stack:
        balancer = LoadBalancer(Options(ping_interval_s=0.01, **options))
        workers = {f"worker-{n}": ServingWorker(f"worker-{n}") for n in range(1, count + 1)}
        for worker in workers.values():
            port = int(balancer.worker_environ(worker.id)["PORT"])
            bound = socket.create_server(("127.0.0.1", port))
            route = web.route("*", "/{path:.*}", worker.answer)
            await stack.enter_async_context(serve_routes(route, bound=bound))
        # It exits first: a connection that arrives while a server closes is never closed.
        await stack.enter_async_context(balancer)
        session = await stack.enter_async_context(aiohttp.ClientSession(balancer.url))
        yield BalancedEndpoint(workers, session)


async def test_a_request_reaches_a_worker_unchanged_and_its_response_the_caller() -> None:
    async with start_load_balancer() as endpoint:
        headers = {"Authorization": "Bearer sk-mine"}
        url = "/v1/files/a%2Fb?limit=2"
        async with endpoint.session.delete(url, data="text", headers=headers) as answer:
            request_fields = await answer.json()
            assert (answer.status, answer.headers["x-own"]) == (201, "1")
            assert answer.headers[AFFINITY_HEADER] == request_fields.pop("worker")
    assert request_fields == {
        "method": "DELETE",
        "path": url,
        "body": "text",
        "key": "Bearer sk-mine",
    }


async def test_the_worker_with_the_fewest_requests_gets_the_next() -> None:
    async with start_load_balancer() as endpoint:
        slow = asyncio.create_task(endpoint.ask("/slow", affinity="strict worker-1"))
        await endpoint.workers["worker-1"].slow_request_arrived.wait()
        # Now both workers are healthy.
        assert (await endpoint.ask(affinity="strict worker-2"))[2] == "worker-2"
        assert {(await endpoint.ask())[2] for _ in range(5)} == {"worker-2"}
        for affinity in ("strict worker-1", "strict-resume worker-1", "worker-1"):
            assert (await endpoint.ask(affinity=affinity))[2] == "worker-1"
        endpoint.workers["worker-1"].released.set()
        assert (await slow)[2] == "worker-1"


async def test_a_session_moves_to_another_worker_unless_its_affinity_is_strict() -> None:
    async with start_load_balancer(affinity_wait_s=0.1) as endpoint:
        async with asyncio.timeout(HUNG_S):
            while (await endpoint.ask(affinity="strict worker-2"))[0] != 201:
                pass
            endpoint.workers["worker-1"].ping = 503
            while (await endpoint.ask(affinity="worker-1"))[2] == "worker-1":
                pass
        status, body, _ = await endpoint.ask(affinity="strict worker-1")
        assert (status, "timed out waiting for worker" in body["error"]) == (400, True)
        status, body, _ = await endpoint.ask(affinity="strict worker-9")
        assert (status, "affinity_worker_gone" in body["error"]) == (404, True)


@pytest.mark.parametrize("ping", [204, 503])
async def test_a_request_waits_a_limited_time_for_a_healthy_worker(ping: int) -> None:
    async with start_load_balancer(1, backend_wait_s=0.2) as endpoint:
        endpoint.workers["worker-1"].ping = ping
        async with asyncio.timeout(HUNG_S):
            while (answer := await endpoint.ask())[0] != 400:
                pass
        assert "no workers available" in answer[1]["error"]
        endpoint.workers["worker-1"].ping = 200
        while (await endpoint.ask())[0] != 201:
            pass


async def test_too_large_and_too_slow_exchanges_are_errors() -> None:
    async with start_load_balancer(1) as endpoint:
        async with endpoint.session.post("/v1/files", data=BytesIO(bytes(30_000_001))) as answer:
            assert answer.status == 413
        assert (await endpoint.ask("/large"))[0] == 502
    async with start_load_balancer(1, forward_timeout_s=0.2) as endpoint:
        assert (await endpoint.ask("/slow"))[0] == 504


async def test_a_request_needs_the_endpoints_key() -> None:
    async with start_load_balancer(1, api_key="sk-endpoint") as endpoint:
        assert (await endpoint.ask())[0] == 401
        headers = {"Authorization": "Bearer sk-endpoint"}
        async with endpoint.session.get("/v1/models", headers=headers) as answer:
            assert answer.status == 201
