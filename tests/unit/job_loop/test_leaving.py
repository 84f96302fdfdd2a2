"""The loop ends in order: no further job, those that run are answered, then it is over."""

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
from support.job_loops import HANG, Platform, ScriptedAnswers, looping, session, urls
from support.processes.background import HUNG_S, eventually

from emulator import Action, Call, Emulator, Fault, Options, Status
from job_loop import JobLoop, Limits, Wire
from job_loop.wire import Urls
from worker.errors import StartFailed
from worker.failed_start import FailedStart


async def test_an_idle_worker_leaves_before_its_take_is_over() -> None:
    async with Emulator(Options(take_poll_s=2 * HUNG_S)) as emulator, looping(emulator) as platform:
        await platform.run("first")
        platform.loop.leave()
        await platform.ended()
        assert platform.submit("late").status is Status.IN_QUEUE


async def test_what_runs_is_finished_and_nothing_more(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No job waited for the take, so none is on its way.
    monkeypatch.setattr("job_loop.loop.TAKE_PATIENCE_S", 0)
    platform.emulator.faults.add(Fault(on=Call.STREAM, do=Action.DELAY, delay_s=0.2, calls=2))
    job = platform.submit("a", "b", stream=True)
    await platform.begun(job)
    assert not platform.answers.left
    platform.loop.leave()
    assert platform.answers.left
    connections = platform.emulator.queue.worker("w").connections
    await eventually(lambda: any(connection.is_closing() for connection in connections))
    late = platform.submit("late")
    await platform.ended()
    assert (job.status, job.output) == (Status.COMPLETED, ["a", "b"])
    assert late.status is Status.IN_QUEUE


async def test_a_job_that_is_handed_over_during_the_signal_is_answered(platform: Platform) -> None:
    await platform.run("first")
    job = platform.submit("second")
    # The take's answer is on its way.
    platform.loop.leave()
    await platform.ended()
    assert (job.status, job.output) == (Status.COMPLETED, ["second"])


class HoldingPlatform:
    """A platform that holds a take until nothing more is sent to it.

    Then it goes on with an answer that it has begun, as one that learns of the signal too late.
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


def leave_during_take(holding: HoldingPlatform) -> ScriptedAnswers:
    """Let a loop leave during its take; return what answered its jobs."""

    async def run() -> ScriptedAnswers:
        answers = ScriptedAnswers()
        server = await asyncio.start_server(holding.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wire = Wire(Urls(f"{url}/take?", f"{url}/stream/$ID?", f"{url}/done/$ID?"), session)
        loop = JobLoop(answers, wire, Limits(1, 60), Future(), set())
        with contextlib.closing(server):
            async with asyncio.timeout(HUNG_S):
                running = asyncio.create_task(loop.run())
                await eventually(lambda: holding.takes > 0)
                loop.leave()
                await running
            holding.over.set()
        return answers

    # As in production.
    return uvloop.run(run())


BODY = json.dumps({"id": "j", "input": {"yields": ["a"]}}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("begun", [0, 10, len(ANSWER) - len(BODY), len(ANSWER) - 5])
def test_a_job_that_is_handed_over_in_the_moment_of_the_signal_is_not_lost(
    begun: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("job_loop.polls.CLOSING_S", HUNG_S)
    rest = ANSWER[begun:]
    pieces = [rest[at : at + 16] for at in range(0, len(rest), 16)]
    holding = HoldingPlatform(ANSWER[:begun], pieces, closes=closes)
    answers = leave_during_take(holding)
    assert [record.id for record in answers.records] == ["j"]
    assert (holding.takes, holding.posts) == (1, [{"output": "a"}, {"output": ["a"]}])


def test_an_answer_that_has_begun_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("job_loop.polls.CLOSING_S", 0.0)
    holding = HoldingPlatform(ANSWER[: -len(BODY)], [bytes([byte]) for byte in BODY])
    assert [record.id for record in leave_during_take(holding).records] == ["j"]


@pytest.mark.parametrize(("closes", "closing_s"), [(True, HUNG_S), (False, 0.05)])
def test_a_platform_without_a_job_is_asked_once_and_not_waited_for_until_its_poll_is_over(
    closes: bool, closing_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("job_loop.polls.CLOSING_S", closing_s)
    holding = HoldingPlatform(b"", [], closes=closes)
    assert not leave_during_take(holding).records
    assert holding.takes == 1


async def test_after_the_grace_jobs_fail_retryably_with_what_they_have() -> None:
    async with Emulator() as emulator, looping(emulator, grace_s=0.1) as platform:
        job = platform.submit("begun", HANG, stream=True)
        await platform.begun(job)
        platform.loop.leave()
        await platform.ended()
    error = json.loads(job.error or "")["error"]
    assert (job.status, error["code"], error["retryable"]) == (Status.FAILED, 503, True)
    assert [chunk.output for chunk in job.chunks] == ["begun"]


async def test_jobs_of_a_dead_engine_have_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("job_loop.loop.DEAD_GRACE_S", 0.1)
    async with Emulator() as emulator, looping(emulator, grace_s=2 * HUNG_S) as platform:
        job = platform.submit("begun", HANG, stream=True)
        await platform.begun(job)
        platform.died.set_result(None)
        await platform.ended()
        assert platform.submit("late").status is Status.IN_QUEUE
    assert (job.status, json.loads(job.error or "")["error"]["code"]) == (Status.FAILED, 503)


async def test_an_unreachable_platform_keeps_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("job_loop.loop.LAST_POSTS_S", 0.1)
    async with Emulator() as emulator, looping(emulator, grace_s=0.1) as platform:
        emulator.faults.add(Fault(on=Call.DONE, do=Action.STATUS))
        job = platform.submit("whole")
        await eventually(lambda: job.chunks)
        platform.loop.leave()
        await platform.ended()
    assert (job.status, platform.in_progress) == (Status.IN_PROGRESS, set())


async def test_the_signal_ends_a_pause(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []

    def pause_s(failures: int) -> float:
        pauses.append(failures)
        return 2 * HUNG_S

    monkeypatch.setattr("job_loop.polls.pause_s", pause_s)
    await platform.run("first")
    platform.emulator.faults.add(Fault(on=Call.TAKE, do=Action.STATUS))
    await platform.run("second")
    await eventually(lambda: pauses)
    platform.loop.leave()
    await platform.ended()


async def test_a_signal_begins_it_and_a_second_one_goes_to_the_handler_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    second: list[int] = []

    def exit_now(number: int, _: object) -> None:
        second.append(number)

    signal.signal(signal.SIGTERM, exit_now)
    try:
        async with Emulator() as emulator, looping(emulator) as platform:
            job = platform.submit(HANG)
            await platform.begun(job)
            assert signal.getsignal(signal.SIGTERM) is not exit_now
            os.kill(os.getpid(), signal.SIGTERM)
            # The loop's own handler gives way to it.
            await eventually(lambda: signal.getsignal(signal.SIGTERM) is exit_now)
            assert second == []
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda: second)
            emulator.queue.cancel(job)
            await platform.ended()
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert second == [signal.SIGTERM]


# Before what answers why a worker does not start:


def loop_of_failed_start(emulator: Emulator, limits: Limits) -> JobLoop:
    wire = Wire(urls(emulator), session)
    return JobLoop(FailedStart(StartFailed("no model")), wire, limits, Future(), set[str]())


async def test_a_failed_start_ends_though_jobs_never_stop_coming() -> None:
    async with Emulator() as emulator, asyncio.timeout(HUNG_S):
        jobs = [emulator.queue.submit({"input": {}})]
        loop = loop_of_failed_start(emulator, Limits(4, grace_s=60, idle_s=HUNG_S, life_s=0.2))
        ending = asyncio.create_task(loop.run())
        while not ending.done():
            # One always waits.
            if jobs[-1].status is not Status.IN_QUEUE:
                jobs.append(emulator.queue.submit({"input": {}}))
            await asyncio.sleep(0.001)
        await ending
    assert [job.status for job in jobs[:-1]] == [Status.FAILED] * (len(jobs) - 1)


async def test_a_failed_start_ends_without_jobs_and_answers_one_that_was_not_read() -> None:
    async with Emulator() as emulator, asyncio.timeout(HUNG_S):
        job = emulator.queue.submit({"input": {"prompts": [{"a": 1}] * 10}})
        limits = Limits(4, grace_s=60, values=9, idle_s=0.1)
        await loop_of_failed_start(emulator, limits).run()
    assert json.loads(job.error or "")["error"]["message"] == "no model"
