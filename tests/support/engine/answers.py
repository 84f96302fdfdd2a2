"""Jobs answered by scripted engines: what they yield, whole or as lists, and refusals."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from support.engine.scripted import ScriptedEngine, Step, tokens, yields_of
from support.engine.yields import failure
from support.processes.background import HUNG_S
from worker.app import Worker
from worker.engine import Delta
from worker.job import RawJob
from worker.record import JobRecord

LIMIT = 1_000_000
EXACT = {"max_batch_delay_ms": 0}  # chunks of the formula's sizes, however slow the machine

every_form = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def answered(payload: Any, *script: Step, **environ: str) -> list[Any]:
    """Return all yields of a job that an engine with this script answers."""
    with ScriptedEngine(*script) as engine:
        return await yields_of(engine, payload, **environ)


async def refused(payload: Any, **environ: str) -> dict[str, Any]:
    """Return the error of a job that yields nothing else and does not reach the engine."""
    with ScriptedEngine(*tokens("a")) as engine:
        yields = await yields_of(engine, payload, **environ)
    assert (len(yields), engine.asked) == (1, [])
    return failure(yields)


class Scripts(ScriptedEngine):
    """Plays the script of a prompt; without one it repeats the prompt."""

    def __init__(self, **scripts: Sequence[Step]) -> None:
        super().__init__()
        self.scripts = scripts

    async def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        # It is read for the first delta, before any other request runs.
        self.script = tuple(self.scripts.get(str(job.prompt)) or tokens(str(job.prompt)))
        found = super().generate(job, request_id, in_list=in_list)
        async with contextlib.aclosing(found) as deltas:
            async for delta in deltas:
                yield delta


class Details(ScriptedEngine):
    """Plays the script as it is, streaming or not, so that deltas keep their details."""

    async def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        self.asked.append(job)
        async with contextlib.aclosing(self.play(request_id)) as deltas:
            async for delta in deltas:
                yield delta


async def detailed(payload: Any, *script: Step) -> list[Any]:
    """Return all yields of a job whose engine's deltas arrive as they are, with their details."""
    with Details(*script) as engine:
        return await yields_of(engine, payload)


class Consumer:
    """Iterates a job as the SDK does: each yield is posted, and the generator is not closed.

    The first post lasts until ``posted`` is set.
    """

    def __init__(
        self, worker: Worker, payload: Any, name: str = "job-1", record: JobRecord | None = None
    ) -> None:
        self.generator = worker.handle({"id": name, "input": payload}, record)
        self.yields: list[Any] = []
        self.posting = asyncio.Event()
        self.posted = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for chunk in self.generator:
            self.yields.append(chunk)
            self.posting.set()
            await self.posted.wait()

    async def cancel(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task

    async def end(self) -> list[Any]:
        """Return all yields, once the job has ended."""
        self.posted.set()
        async with asyncio.timeout(HUNG_S):
            await self.task
        return self.yields


def job(*prompts: Any, **keys: Any) -> dict[str, Any]:
    return {"id": "job-1", "input": {"prompts": list(prompts), **keys}}


def results_of(yields: list[Any], *, stream: bool) -> list[Any]:
    """Return the results in the order of the prompts; every one must have come once."""
    if not stream:
        return [result for chunk in yields for result in chunk["outputs"]]
    assert {tuple(chunk) for chunk in yields} == {("index", "result")}
    assert sorted(chunk["index"] for chunk in yields) == list(range(len(yields)))
    return [chunk["result"] for chunk in sorted(yields, key=lambda chunk: int(chunk["index"]))]


def texts(results: list[Any]) -> list[str]:
    return ["".join(result["choices"][0]["tokens"]) for result in results]


def sizes(yields: list[Any]) -> list[int]:
    return [len(json.dumps(chunk, ensure_ascii=False).encode()) for chunk in yields]
