"""Shutdown of the loop: it takes no further jobs, answers running ones, and ends."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import uvloop
from aiohttp import ClientSession
from support.job_loops import HANG, Platform, ScriptedAnswers, platform_urls, run_job_loop
from support.processes.background import HUNG_S, poll_until

from emulator import Action, Call, Emulator, Fault, Options, Status
from job_loop import JobLoop, LoopLimits, PlatformClient
from job_loop.wire import PlatformUrls
from worker.errors import StartFailed
from worker.failed_start import FailedStartHandler


async def test_an_idle_worker_exits_before_its_take_ends() -> None:
    async with (
        Emulator(Options(long_poll_s=2 * HUNG_S)) as emulator,
        run_job_loop(emulator) as platform,
    ):
        await platform.run("first")
        platform.loop.start_shutdown()
        await platform.wait_for_exit()
        assert platform.submit("late").status is Status.IN_QUEUE


class ScriptedBackground:
    """Work of the process that ends some seconds after ``stop``."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.stopped, self.outcome = seconds, asyncio.Event(), "running"

    async def run(self) -> None:
        await self.stopped.wait()
        self.outcome = "cancelled"
        await asyncio.sleep(self.seconds)
        self.outcome = "ended"

    def stop(self) -> None:
        self.stopped.set()


@pytest.mark.parametrize(("seconds", "outcome"), [(0.1, "ended"), (HUNG_S, "cancelled")])
async def test_work_without_a_job_has_the_grace_period_to_end(seconds: float, outcome: str) -> None:
    background = ScriptedBackground(seconds)
    async with (
        Emulator(Options(long_poll_s=0.1)) as emulator,
        run_job_loop(emulator, grace_s=1, background=background) as platform,
    ):
        await platform.run("first")
        assert background.outcome == "running"
        platform.loop.start_shutdown()
        await platform.wait_for_exit()
    assert background.outcome == outcome


async def test_running_jobs_are_finished_and_no_others_are_taken(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No job was queued for the open take, so nothing is in transit.
    monkeypatch.setattr("job_loop.loop.TAKE_WAIT_S", 0)
    platform.emulator.faults.add(Fault(on=Call.STREAM, do=Action.DELAY, delay_s=0.2, calls=2))
    job = platform.submit("a", "b", stream=True)
    await platform.wait_until_begun(job)
    assert not platform.answers.has_stopped_long_work
    platform.loop.start_shutdown()
    assert platform.answers.has_stopped_long_work
    connections = platform.emulator.queue.get_worker("w").connections
    await poll_until(lambda: any(connection.is_closing() for connection in connections))
    late = platform.submit("late")
    await platform.wait_for_exit()
    assert (job.status, job.output) == (Status.COMPLETED, ["a", "b"])
    assert late.status is Status.IN_QUEUE


async def test_a_job_that_arrives_during_the_signal_is_answered(platform: Platform) -> None:
    await platform.run("first")
    job = platform.submit("second")
    # The response of the take is in transit.
    platform.loop.start_shutdown()
    await platform.wait_for_exit()
    assert (job.status, job.output) == (Status.COMPLETED, ["second"])


class HoldingPlatform:
    """A platform that holds a take until the worker closes its side of the connection.

    Then it completes a response that it has begun, like a platform that notices this too late.
    """

    def __init__(self, begun: bytes, rest: Sequence[bytes], *, closes: bool = False) -> None:
        self.takes = 0
        self.posts: list[Any] = []
        self.over = asyncio.Event()
        self._begun = begun
        self._rest = rest
        self._closes = closes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    await self._answer_take(reader, writer)
                    return
                size = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
                self.posts.append(json.loads(await reader.readexactly(size)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def _answer_take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.takes += 1
        writer.write(self._begun)
        assert await reader.read() == b""
        for piece in self._rest:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if not self._closes:
            await self.over.wait()


def stop_during_take(holding_platform: HoldingPlatform) -> ScriptedAnswers:
    """Shut a loop down during its take; return the answers of its jobs."""

    async def run() -> ScriptedAnswers:
        answers = ScriptedAnswers()
        server = await asyncio.start_server(holding_platform.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wire = PlatformClient(
            PlatformUrls(f"{url}/take?", f"{url}/stream/$ID?", f"{url}/done/$ID?"), ClientSession
        )
        loop = JobLoop(answers, wire, LoopLimits(1, 60), Future(), set())
        with contextlib.closing(server):
            async with asyncio.timeout(HUNG_S):
                running = asyncio.create_task(loop.run())
                await poll_until(lambda: holding_platform.takes > 0)
                loop.start_shutdown()
                await running
            holding_platform.over.set()
        return answers

    # Production uses uvloop, too.
    return uvloop.run(run())


BODY = json.dumps({"id": "j", "input": {"yields": ["a"]}}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("begun", [0, 10, len(ANSWER) - len(BODY), len(ANSWER) - 5])
def test_a_job_that_is_handed_over_at_the_moment_of_the_signal_is_not_lost(
    begun: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("job_loop.polls.CLOSE_TIMEOUT_S", HUNG_S)
    rest = ANSWER[begun:]
    pieces = [rest[at : at + 16] for at in range(0, len(rest), 16)]
    holding_platform = HoldingPlatform(ANSWER[:begun], pieces, closes=closes)
    answers = stop_during_take(holding_platform)
    assert [record.id for record in answers.records] == ["j"]
    assert (holding_platform.takes, holding_platform.posts) == (
        1,
        [{"output": "a"}, {"output": ["a"]}],
    )


def test_a_response_that_has_begun_is_read_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("job_loop.polls.CLOSE_TIMEOUT_S", 0.0)
    holding_platform = HoldingPlatform(ANSWER[: -len(BODY)], [bytes([byte]) for byte in BODY])
    assert [record.id for record in stop_during_take(holding_platform).records] == ["j"]


@pytest.mark.parametrize(("closes", "closing_s"), [(True, HUNG_S), (False, 0.05)])
def test_an_empty_take_is_neither_repeated_nor_awaited_on_shutdown(
    closes: bool, closing_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("job_loop.polls.CLOSE_TIMEOUT_S", closing_s)
    holding_platform = HoldingPlatform(b"", [], closes=closes)
    assert not stop_during_take(holding_platform).records
    assert holding_platform.takes == 1


async def test_jobs_fail_retryably_after_the_grace_period_and_keep_their_chunks() -> None:
    async with Emulator() as emulator, run_job_loop(emulator, grace_s=0.1) as platform:
        job = platform.submit("begun", HANG, stream=True)
        await platform.wait_until_begun(job)
        platform.loop.start_shutdown()
        await platform.wait_for_exit()
    error = json.loads(job.error or "")["error"]
    assert (job.status, error["code"], error["retryable"]) == (Status.FAILED, 503, True)
    assert [chunk.output for chunk in job.chunks] == ["begun"]


async def test_jobs_get_some_seconds_after_the_death_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("job_loop.loop.DEAD_GRACE_S", 0.1)
    async with Emulator() as emulator, run_job_loop(emulator, grace_s=2 * HUNG_S) as platform:
        job = platform.submit("begun", HANG, stream=True)
        await platform.wait_until_begun(job)
        platform.died.set_result(None)
        await platform.wait_for_exit()
        assert platform.submit("late").status is Status.IN_QUEUE
    assert (job.status, json.loads(job.error or "")["error"]["code"]) == (Status.FAILED, 503)


async def test_an_unreachable_platform_does_not_block_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("job_loop.loop.LAST_POSTS_S", 0.1)
    async with Emulator() as emulator, run_job_loop(emulator, grace_s=0.1) as platform:
        emulator.faults.add(Fault(on=Call.DONE, do=Action.STATUS))
        job = platform.submit("whole")
        await poll_until(lambda: job.chunks)
        platform.loop.start_shutdown()
        await platform.wait_for_exit()
    assert (job.status, platform.in_progress) == (Status.IN_PROGRESS, set())


async def test_the_signal_interrupts_a_pause(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []

    def pause_s(failures: int) -> float:
        pauses.append(failures)
        return 2 * HUNG_S

    monkeypatch.setattr("job_loop.polls.backoff_s", pause_s)
    await platform.run("first")
    platform.emulator.faults.add(Fault(on=Call.TAKE, do=Action.STATUS))
    await platform.run("second")
    await poll_until(lambda: pauses)
    platform.loop.start_shutdown()
    await platform.wait_for_exit()


async def test_a_signal_starts_shutdown_and_a_second_one_reaches_the_previous_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    second: list[int] = []

    def exit_now(number: int, _: object) -> None:
        second.append(number)

    signal.signal(signal.SIGTERM, exit_now)
    try:
        async with Emulator() as emulator, run_job_loop(emulator) as platform:
            job = platform.submit(HANG)
            await platform.wait_until_begun(job)
            assert signal.getsignal(signal.SIGTERM) is not exit_now
            os.kill(os.getpid(), signal.SIGTERM)
            # The loop's own handler restores the previous one.
            await poll_until(lambda: signal.getsignal(signal.SIGTERM) is exit_now)
            assert second == []
            os.kill(os.getpid(), signal.SIGTERM)
            await poll_until(lambda: second)
            emulator.queue.cancel(job)
            await platform.wait_for_exit()
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert second == [signal.SIGTERM]


# The loop of a worker whose startup has failed:


def create_failed_start_loop(emulator: Emulator, limits: LoopLimits) -> JobLoop:
    wire = PlatformClient(platform_urls(emulator), ClientSession)
    return JobLoop(FailedStartHandler(StartFailed("no model")), wire, limits, Future(), set[str]())


async def test_a_failed_start_exits_even_if_jobs_keep_arriving() -> None:
    async with Emulator() as emulator, asyncio.timeout(HUNG_S):
        jobs = [emulator.queue.submit({"input": {}})]
        loop = create_failed_start_loop(
            emulator, LoopLimits(4, grace_s=60, idle_s=HUNG_S, life_s=0.2)
        )
        ending = asyncio.create_task(loop.run())
        while not ending.done():
            # Keep one job in the queue.
            if jobs[-1].status is not Status.IN_QUEUE:
                jobs.append(emulator.queue.submit({"input": {}}))
            await asyncio.sleep(0.001)
        await ending
    assert [job.status for job in jobs[:-1]] == [Status.FAILED] * (len(jobs) - 1)


async def test_a_failed_start_answers_an_unreadable_job_and_exits_without_jobs() -> None:
    async with Emulator() as emulator, asyncio.timeout(HUNG_S):
        job = emulator.queue.submit({"input": {"prompts": [{"a": 1}] * 10}})
        limits = LoopLimits(4, grace_s=60, max_values=9, idle_s=0.1)
        await create_failed_start_loop(emulator, limits).run()
    assert json.loads(job.error or "")["error"]["message"] == "no model"
