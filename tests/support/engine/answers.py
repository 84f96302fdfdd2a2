"""Jobs that scripted engines answer: their yields, results of lists, and refusals."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from support.engine.scripted import ScriptedEngine, Step, failure, tokens, worker, yields_of
from support.processes.background import HUNG_S
from worker.app import Worker
from worker.engine import Delta
from worker.job import RawJob
from worker.record import JobRecord

LIMIT = 1_000_000
EXACT = {"max_batch_delay_ms": 0}  # chunks have exactly the formula's sizes, even on a slow machine

JOB_ID = "job-1"

every_form = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def run_job(payload: Any, *script: Step, **environ: str) -> list[Any]:
    """Return all yields of a job that is answered by an engine with this script."""
    with ScriptedEngine(*script) as engine:
        return await yields_of(engine, payload, **environ)


async def job_error(payload: Any, **environ: str) -> dict[str, Any]:
    """Return the error of a job that yields nothing else and does not reach the engine."""
    with ScriptedEngine(*tokens("a")) as engine:
        yields = await yields_of(engine, payload, **environ)
    assert (len(yields), engine.requests) == (1, [])
    return failure(yields)


class PromptScriptsEngine(ScriptedEngine):
    """Plays the script of a request's prompt, or repeats a prompt without a script."""

    def __init__(self, **scripts: Sequence[Step]) -> None:
        super().__init__()
        self.scripts = scripts

    async def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        # The script is read for the first delta, before another request runs.
        self.script = tuple(self.scripts.get(str(job.prompt)) or tokens(str(job.prompt)))
        generated = super().generate(job, request_id, in_list=in_list)
        async with contextlib.aclosing(generated) as deltas:
            async for delta in deltas:
                yield delta


class DetailedEngine(ScriptedEngine):
    """Plays the script unchanged, streamed or not, so that deltas retain their details."""

    async def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        self.requests.append(job)
        async with contextlib.aclosing(self.play(request_id)) as deltas:
            async for delta in deltas:
                yield delta


async def run_detailed_job(payload: Any, *script: Step) -> list[Any]:
    """Return all yields of a job whose engine does not join deltas."""
    with DetailedEngine(*script) as engine:
        return await yields_of(engine, payload)


class Consumer:
    """Iterates over a job's yields like the SDK: it posts each yield, and closes no generator.

    The first post lasts until ``post_finished`` is set.
    """

    def __init__(
        self, worker: Worker, payload: Any, name: str = "job-1", record: JobRecord | None = None
    ) -> None:
        self.generator = worker.handle({"id": name, "input": payload}, record)
        self.yields: list[Any] = []
        self.post_started = asyncio.Event()
        self.post_finished = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for chunk in self.generator:
            self.yields.append(chunk)
            self.post_started.set()
            await self.post_finished.wait()

    async def cancel(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task

    async def finish(self) -> list[Any]:
        """Return all yields of the job once it has ended."""
        self.post_finished.set()
        async with asyncio.timeout(HUNG_S):
            await self.task
        return self.yields


def list_job(*prompts: Any, **keys: Any) -> dict[str, Any]:
    return {"id": "job-1", "input": {"prompts": list(prompts), **keys}}


def results_of(yields: list[Any], *, stream: bool) -> list[Any]:
    """Return the results in the order of the prompts; each result must occur once."""
    if not stream:
        return [result for chunk in yields for result in chunk["outputs"]]
    assert {tuple(chunk) for chunk in yields} == {("index", "result")}
    assert sorted(chunk["index"] for chunk in yields) == list(range(len(yields)))
    return [chunk["result"] for chunk in sorted(yields, key=lambda chunk: int(chunk["index"]))]


def texts(results: list[Any]) -> list[str]:
    return ["".join(result["choices"][0]["tokens"]) for result in results]


def sizes(yields: list[Any]) -> list[int]:
    return [len(json.dumps(chunk, ensure_ascii=False).encode()) for chunk in yields]


def record_fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of all records that were logged so far."""
    return [vars(entry)["fields"] for entry in caplog.records if entry.name == "worker.record"]


async def record_of(engine: ScriptedEngine, payload: Any, **environ: str) -> JobRecord:
    record = JobRecord(JOB_ID)
    async for _ in worker(engine, **environ).handle({"id": JOB_ID, "input": payload}, record):
        pass
    return record
