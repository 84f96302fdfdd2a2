"""A cancelled job frees its place in the engine at once."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.engine.scripted import HANG, ScriptedEngine, chat, raw, tokens, until, worker

STREAMS = [raw(stream=True), chat(stream=True)]
WHOLE = [raw(stream=False), chat(stream=False)]
every_path = pytest.mark.parametrize(
    "payload", STREAMS + WHOLE, ids=["raw-stream", "openai-stream", "raw", "openai"]
)
every_stream = pytest.mark.parametrize("payload", STREAMS, ids=["raw", "openai"])


class Sdk:
    """Iterates a job as the SDK does: a POST after every yield, and the generator is kept."""

    def __init__(
        self, engine: ScriptedEngine, payload: dict[str, Any], name: str = "job-1"
    ) -> None:
        job = {"id": name, "input": payload}
        self.generator: AsyncGenerator[Any, None] = worker(engine).handle(job)
        self.yields: list[Any] = []
        self.posting = asyncio.Event()
        self.posted = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        # Not closed, as by the SDK.
        async for chunk in self.generator:
            self.yields.append(chunk)
            self.posting.set()
            await self.posted.wait()

    async def cancel(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


@every_path
async def test_a_job_cancelled_while_it_waits_for_the_engine_is_aborted(
    payload: dict[str, Any],
) -> None:
    with ScriptedEngine(HANG) as engine:
        sdk = Sdk(engine, payload)
        assert await until(lambda: engine.generating == ["job-1"])
        await sdk.cancel()
        assert await until(lambda: engine.aborted == ["job-1"])
        assert engine.generating == []
        assert sdk.yields == []


@every_stream
async def test_a_job_cancelled_in_a_post_is_aborted_though_its_generator_is_never_closed(
    payload: dict[str, Any],
) -> None:
    with ScriptedEngine(*tokens("a", "b", finish=None), HANG) as engine:
        sdk = Sdk(engine, payload)
        await sdk.posting.wait()
        await sdk.cancel()
        assert await until(lambda: engine.aborted == ["job-1"])
        assert engine.generating == []
        await (
            sdk.generator.aclose()
        )  # only now: until here the generator was suspended at its yield


@every_stream
async def test_a_generator_closed_in_the_middle_aborts_its_request(
    payload: dict[str, Any],
) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        generator = worker(engine).handle({"id": "job-1", "input": payload})
        await anext(generator)
        assert engine.generating == ["job-1"]
        await generator.aclose()
        assert await until(lambda: engine.aborted == ["job-1"])


@every_path
async def test_a_cancel_reaches_no_other_job(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        jobs = [Sdk(engine, payload, name) for name in ("stays", "goes")]
        assert await until(lambda: sorted(engine.generating) == ["goes", "stays"])
        await jobs[1].cancel()
        assert await until(lambda: engine.aborted == ["goes"])
        assert engine.generating == ["stays"]
        await jobs[0].cancel()


@every_path
async def test_a_job_that_ended_is_not_aborted(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        sdk = Sdk(engine, payload)
        sdk.posted.set()
        await sdk.task
        assert await until(lambda: engine.generating == [])
        assert engine.aborted == []
        assert sdk.yields != []


@every_stream
async def test_a_job_cancelled_after_its_last_token_needs_no_abort(
    payload: dict[str, Any],
) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        sdk = Sdk(engine, payload)
        await sdk.posting.wait()
        assert await until(lambda: engine.generating == [])
        await sdk.cancel()
        await sdk.generator.aclose()
        assert engine.aborted == []


@every_path
async def test_a_worker_answers_on_after_many_cancels(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        jobs = [Sdk(engine, payload, str(number)) for number in range(30)]
        assert await until(lambda: len(engine.generating) == 30)
        for job in jobs:
            job.task.cancel()
        await asyncio.gather(*[job.task for job in jobs], return_exceptions=True)
        assert await until(lambda: engine.generating == [])
        engine.script = tuple(tokens("fine"))
        sdk = Sdk(engine, payload)
        sdk.posted.set()
        await sdk.task
        assert "fine" in str(sdk.yields)
        for job in jobs:
            await job.generator.aclose()


@every_path
async def test_a_job_whose_time_is_up_is_aborted(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        limit = asyncio.timeout(None)

        async def answer() -> None:
            async with limit:
                async for _ in worker(engine).handle({"id": "job-1", "input": payload}):
                    pass

        answering = asyncio.create_task(answer())
        assert await until(lambda: engine.generating == ["job-1"])
        limit.reschedule(asyncio.get_running_loop().time())
        with pytest.raises(TimeoutError):
            await answering
        assert await until(lambda: engine.aborted == ["job-1"])
