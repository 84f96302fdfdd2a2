"""Webhooks: posts of a job's status object when it ends."""

import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from support.job_loops import serve_routes
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, emulator_peer, with_options

LONG_S = 60.0
UNACKNOWLEDGED = "the webhook of job {} was not acknowledged: {}"


@dataclass
class Receiver:
    """Records posts and responds with the statuses in order; the last one repeats."""

    statuses: list[int]
    url: str = ""
    posts: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":  # where a redirect leads
            return web.Response()
        self.times.append(time.monotonic())
        self.posts.append(await request.json())
        status = self.statuses.pop(0) if self.statuses[1:] else self.statuses[0]
        return web.Response(status=status, headers={"Location": "/hook"})

    async def wait_for_posts(self, count: int) -> None:
        await poll_until(lambda: len(self.posts) >= count)


@asynccontextmanager
async def start_receiver(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver([*statuses])
    async with serve_routes(web.route("*", "/hook", receiver.answer)) as url:
        receiver.url = f"{url}/hook?of=job"
        yield receiver


@pytest.fixture
def unreachable_url() -> Iterator[str]:
    """Return a URL at which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/hook"


async def complete(peer: Peer, job: str) -> None:
    await peer.take()
    await peer.post_done(job, output=["a"])


async def fail(peer: Peer, job: str) -> None:
    await peer.take()
    await peer.post_done(job, error="boom")


async def cancel(peer: Peer, job: str) -> None:
    await peer.post(f"/cancel/{job}")


async def expire(peer: Peer, job: str) -> None:
    await peer.get(f"/status/{job}?ttl=0")


@pytest.mark.parametrize(
    ("end", "status"),
    [(complete, "COMPLETED"), (fail, "FAILED"), (cancel, "CANCELLED"), (expire, "TIMED_OUT")],
)
async def test_a_webhook_gets_a_jobs_status_object_once_when_it_ends(
    peer: Peer, end: Callable[[Peer, str], Awaitable[object]], status: str
) -> None:
    async with start_receiver(200) as receiver:
        job = await peer.run(webhook=receiver.url)
        await end(peer, job)
        await receiver.wait_for_posts(1)
        assert receiver.posts == [await peer.status_object(job)]
        assert receiver.posts[0]["status"] == status


@pytest.mark.parametrize(
    ("statuses", "posts", "warning"),
    [
        ([201, 200], 2, ""),
        ([500, 204, 404, 200], 3, UNACKNOWLEDGED.format("{}", 404)),
        pytest.param(
            [302], 3, UNACKNOWLEDGED.format("{}", 302), id="a redirect, which would lead to a GET"
        ),
    ],
)
@with_options(webhook_retry_delay_s=0.02)
async def test_a_webhook_is_called_up_to_three_times_until_it_responds_with_200(
    peer: Peer, caplog: pytest.LogCaptureFixture, statuses: list[int], posts: int, warning: str
) -> None:
    async with start_receiver(*statuses) as receiver:
        job = await peer.run(webhook=receiver.url)
        await complete(peer, job)
        await receiver.wait_for_posts(posts)
        await poll_until(lambda: warning.format(job) in caplog.text)
        # A further post would arrive before the other job's.
        peer.advance_clock(0.02)
        await complete(peer, await peer.run(webhook=receiver.url))
        await receiver.wait_for_posts(posts + 1)
        own = [post for post in receiver.posts if post["id"] == job]
        assert own == [await peer.status_object(job)] * posts
        times = itertools.pairwise(receiver.times[:posts])
        assert min(later - earlier for earlier, later in times) >= 0.019
    assert bool(warning) == ("acknowledged" in caplog.text)


@with_options(webhook_retry_delay_s=0.01)
async def test_an_unreachable_webhook_is_abandoned_with_a_warning(
    peer: Peer, unreachable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = await peer.run(webhook=unreachable_url)
    await complete(peer, job)
    await poll_until(lambda: UNACKNOWLEDGED.format(job, "Cannot connect") in caplog.text)
    assert await peer.status(job) == "COMPLETED"


async def test_a_stopped_emulator_calls_no_webhook() -> None:
    async with start_receiver(500) as receiver, emulator_peer(webhook_retry_delay_s=LONG_S) as peer:
        completed, running = [await peer.start(webhook=receiver.url) for _ in range(2)]
        await peer.post_done(completed, output=1)
        await receiver.wait_for_posts(1)
        await peer.emulator.stop()
        peer.queue.cancel(peer.emulator.get_job(running))
        peer.advance_clock(LONG_S)
        # A further post would arrive before this one.
        async with peer.session.post(receiver.url, json="ours"):
            assert receiver.posts[1:] == ["ours"]


@pytest.mark.parametrize("webhook", ["nope", "ftp://example.com/hook", "http://", 5, ""])
async def test_a_webhook_that_is_not_a_url_is_refused(peer: Peer, webhook: object) -> None:
    status, answer = await peer.request("POST", "/run", json={"input": 1, "webhook": webhook})
    assert (status, "/run: webhook: " in answer["error"]) == (400, True)
    assert peer.queue.jobs == {}
