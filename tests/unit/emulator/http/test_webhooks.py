"""Webhooks: posts of a job's status object when it ends."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.processes.emulator_client import Client, emulator_client, eventually

from emulator import Options

LONG_S = 60.0


class Receiver:
    """Records posts, and answers with one status after the other; the last one repeats."""

    def __init__(self, *statuses: int, held: socket.socket | None = None) -> None:
        self.statuses = list(statuses)
        self.posts: list[Any] = []
        app = web.Application()
        app.router.add_post("/hook", self._record)
        if held is None:
            self.server = TestServer(app)
        else:
            self.server = TestServer(app, socket_factory=lambda *_: held)

    async def _record(self, request: web.Request) -> web.Response:
        self.posts.append(await request.json())
        return web.Response(status=self.statuses.pop(0) if self.statuses[1:] else self.statuses[0])

    async def wait_for_posts(self, count: int) -> None:
        async def have_come() -> bool:
            return len(self.posts) >= count

        await eventually(have_come)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/hook?of=job"))


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    async with receiver.server:
        yield receiver


async def complete(client: Client, job: str) -> None:
    await client.get("/job-take/w")
    await client.post_done(job, output=["a"])


async def fail(client: Client, job: str) -> None:
    await client.get("/job-take/w")
    await client.post_done(job, error="boom")


async def cancel(client: Client, job: str) -> None:
    await client.post(f"/cancel/{job}")


async def purge(client: Client, job: str) -> None:
    await client.post("/purge-queue")


async def time_out(client: Client, job: str) -> None:
    await client.get("/job-take/w")
    client.let_pass(LONG_S)
    await client.wait_ended(job)


async def expire(client: Client, job: str) -> None:
    await client.get(f"/status/{job}?ttl=0")


async def lose(client: Client, job: str) -> None:
    await client.get("/job-take/w")
    client.emulator.queue.lose(client.emulator.queue.worker("w"))


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (complete, "COMPLETED"),
        (fail, "FAILED"),
        (lose, "FAILED"),
        (cancel, "CANCELLED"),
        (purge, "CANCELLED"),
        (time_out, "TIMED_OUT"),
        (expire, "TIMED_OUT"),
    ],
)
async def test_a_webhook_gets_a_jobs_status_object_once_when_it_ends(end: Any, status: str) -> None:
    async with receiving(200) as receiver, emulator_client(execution_timeout_s=LONG_S) as client:
        job = await client.run(webhook=receiver.url)
        await asyncio.sleep(0.02)
        assert receiver.posts == []
        await end(client, job)
        await receiver.wait_for_posts(1)
        assert receiver.posts == [await client.status(job)]
        assert receiver.posts[0]["status"] == status


async def test_the_end_of_a_runsync_job_is_posted_to_its_webhook_too() -> None:
    async with receiving(200) as receiver, emulator_client(runsync_wait_s=0) as client:
        body = {"input": 1, "webhook": receiver.url}
        job = (await client.post("/runsync", body))["id"]
        await complete(client, job)
        await receiver.wait_for_posts(1)
        assert receiver.posts[0]["output"] == ["a"]


async def test_a_job_that_is_retried_calls_its_webhook_at_each_end() -> None:
    async with receiving(200) as receiver, emulator_client() as client:
        job = await client.run(webhook=receiver.url)
        await fail(client, job)
        await client.post(f"/retry/{job}")
        await complete(client, job)
        await receiver.wait_for_posts(2)
        assert {post["status"] for post in receiver.posts} == {"FAILED", "COMPLETED"}


@pytest.mark.parametrize(
    ("statuses", "posts"),
    [
        ([200], 1),
        ([500, 200], 2),
        ([201, 200], 2),
        ([404, 429, 200], 3),
        ([500, 204, 404, 200], 3),
    ],
)
async def test_a_webhook_is_tried_three_times_at_most_until_it_answers_200(
    caplog: pytest.LogCaptureFixture, statuses: list[int], posts: int
) -> None:
    def warned() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "emulator"]

    async with receiving(*statuses) as receiver, emulator_client(webhook_retry_s=0.01) as client:
        job = await client.run(webhook=receiver.url)
        await complete(client, job)
        await receiver.wait_for_posts(posts)
        given_up = [f"the webhook of job {job} was not acknowledged: 404"]
        expected = [] if 200 in statuses[:3] else given_up

        async def has_warned() -> bool:
            return warned() == expected

        await eventually(has_warned)
        await asyncio.sleep(0.03)
        assert receiver.posts == [await client.status(job)] * posts
    assert warned() == expected


async def test_attempts_are_as_far_apart_as_the_options_say() -> None:
    async with receiving(500) as receiver, emulator_client(webhook_retry_s=0.05) as client:
        loop = asyncio.get_running_loop()
        job = await client.run(webhook=receiver.url)
        begun = loop.time()
        await complete(client, job)
        await receiver.wait_for_posts(3)
        assert loop.time() - begun >= 0.1
    assert Options().webhook_retry_s == 10


@contextmanager
def refusing() -> Iterator[tuple[socket.socket, str]]:
    """Hold a port where nobody listens; yield the socket, which may listen later, and its URL."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held, f"http://127.0.0.1:{held.getsockname()[1]}/hook"


async def test_a_webhook_whose_connection_is_refused_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def was_tried() -> bool:
        return "Retrying after exception" in caplog.text

    with refusing() as (held, url):
        async with emulator_client(webhook_retry_s=LONG_S) as client:
            with caplog.at_level(logging.DEBUG, "aiohttp_retry"):
                job = await client.run(webhook=url)
                await complete(client, job)
                await eventually(was_tried)
            receiver = Receiver(200, held=held)
            async with receiver.server:
                client.let_pass(LONG_S)
                await receiver.wait_for_posts(1)


async def test_a_webhook_that_is_never_reached_is_given_up_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with refusing() as (_, url):
        async with emulator_client(webhook_retry_s=0.01) as client:
            job = await client.run(webhook=url)
            await complete(client, job)

            async def is_logged() -> bool:
                told = f"the webhook of job {job} was not acknowledged: Cannot connect"
                return told in caplog.text

            await eventually(is_logged)
            assert (await client.status(job))["status"] == "COMPLETED"


async def test_stopping_gives_up_what_was_not_acknowledged() -> None:
    async with receiving(500) as receiver, emulator_client(webhook_retry_s=LONG_S) as client:
        job = await client.run(webhook=receiver.url)
        await complete(client, job)
        await receiver.wait_for_posts(1)
        await client.emulator.stop()
        client.let_pass(LONG_S)
        await asyncio.sleep(0.05)
        assert len(receiver.posts) == 1


async def test_an_emulator_that_was_stopped_calls_no_webhook_any_more() -> None:
    async with receiving(200) as receiver, emulator_client(execution_timeout_s=LONG_S) as client:
        job = client.emulator.job(await client.start(webhook=receiver.url))
        await client.emulator.stop()
        client.let_pass(LONG_S)
        assert await job.wait_ended()
        await asyncio.sleep(0.05)
        assert receiver.posts == []


@pytest.mark.parametrize("webhook", ["nope", "ftp://example.com/hook", "http://", 5, ""])
async def test_a_webhook_that_is_no_url_is_refused(webhook: object) -> None:
    async with emulator_client() as client:
        body = {"input": 1, "webhook": webhook}
        status, answer = await client.request("POST", "/run", json=body)
        assert (status, "/run: webhook: " in answer["error"]) == (400, True)
        assert await client.get("/control/jobs") == {"jobs": []}


async def test_a_redirect_acknowledges_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Following it would send a GET, without the status object."""

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound("/elsewhere")

    async def accept(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/hook", redirect), web.get("/elsewhere", accept)])
    async with TestServer(app) as server, emulator_client(webhook_retry_s=0.01) as client:
        job = await client.run(webhook=str(server.make_url("/hook")))
        await complete(client, job)

        async def is_given_up() -> bool:
            return f"the webhook of job {job} was not acknowledged: 302" in caplog.text

        await eventually(is_given_up)
