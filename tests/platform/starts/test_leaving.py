"""A worker that the platform stops."""

import asyncio

from support.processes.emulated_endpoint import EndpointFactory


async def test_sigterm_ends_a_worker_in_order(started_endpoint: EndpointFactory) -> None:
    async with started_endpoint() as endpoint:
        endpoint.worker.process.terminate()
        assert await asyncio.to_thread(endpoint.worker.ended) == 0
        assert "SIGTERM: no further job is taken" in endpoint.logged
