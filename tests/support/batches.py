"""Batches in tests: their inputs, jobs that run them, and what must hold of their files."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.engine.scripted import CHAT, ScriptedEngine, failure, settings, tokens
from support.processes.background import eventually
from worker.app import Worker
from worker.batches.record import Batch
from worker.batches.store import Batches


def line(name: str, endpoint: str = CHAT, **body: Any) -> dict[str, Any]:
    """Return a line of an input."""
    body = body or {"messages": [{"role": "user", "content": name}]}
    return {"custom_id": name, "method": "POST", "url": endpoint, "body": body}


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    return [line(f"c{index}", **body) for index in range(count)]


def as_text(found: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in found)


def of_lines(count: int, **keys: Any) -> dict[str, Any]:
    """Return a request for a batch of so many lines, which come with it."""
    return {"requests": lines(count), "endpoint": CHAT, **keys}


def worker_at(root: Path, engine: ScriptedEngine, **environ: str) -> Worker:
    return Worker(engine.engines, settings(FILES_PATH=str(root), **environ))


async def answered(worker: Worker, payload: dict[str, Any], job_id: str = "job-1") -> Any:
    """Return the one yield of a job."""
    (found,) = [chunk async for chunk in worker.handle({"id": job_id, "input": payload})]
    return found


async def batch_of(worker: Worker, job_id: str = "job-1", **spec: Any) -> dict[str, Any]:
    """Run a batch in a job, and return it."""
    found = await answered(worker, {"batch": spec}, job_id)
    batch: dict[str, Any] = found["batch"]
    return batch


async def refused(worker: Worker, payload: dict[str, Any], job_id: str = "job-1") -> dict[str, Any]:
    return failure([await answered(worker, payload, job_id)])


def content(root: Path, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a file; none, if there is no file."""
    if file_id is None:
        return []
    text = (root / "worker" / "files" / file_id / "content").read_text()
    assert text.endswith("\n")
    return [json.loads(one) for one in text.split("\n")[:-1]]


def results(root: Path, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the lines of the output and of the error file by custom_id: each stands once."""
    files = [content(root, batch[f"{name}_file_id"]) for name in ("output", "error")]
    output, errors = ({one["custom_id"]: one for one in file} for file in files)
    assert len(output | errors) == sum(map(len, files))
    return output, errors


class Batching:
    """A worker with a volume, and an engine that answers four lines at once."""

    def __init__(self, root: Path, engine: ScriptedEngine) -> None:
        engine.slots = 4
        self.root, self.engine = root, engine
        self.worker = worker_at(root, engine)
        self.batches = Batches(settings(FILES_PATH=str(root)))

    def only(self) -> Batch:
        """Return the one batch that there is."""
        (found,) = self.batches.all()
        return found

    async def answered(self, payload: dict[str, Any], job_id: str = "job-1") -> Any:
        return await answered(self.worker, payload, job_id)

    async def refused(self, payload: dict[str, Any], job_id: str = "job-1") -> dict[str, Any]:
        return await refused(self.worker, payload, job_id)

    async def run(self, job_id: str = "job-1", **spec: Any) -> dict[str, Any]:
        return await batch_of(self.worker, job_id, **spec)

    async def begun(
        self, most: int, worker: Worker | None = None, **spec: Any
    ) -> asyncio.Task[Any]:
        """Begin to run a batch, slowly; return its job when more lines than so many were asked."""
        self.engine.script = tuple(tokens("a", "b", pause=0.05))
        running = asyncio.create_task(answered(worker or self.worker, {"batch": spec}))
        await eventually(lambda: len(self.engine.asked) > most)
        return running

    async def in_the_middle(self, count: int = 300, **keys: Any) -> Batch:
        """Return a batch of which some lines were answered, and no worker is at it."""
        return await self.abandoned(await self.begun(20, **{**of_lines(count), **keys}))

    async def abandoned(self, running: asyncio.Task[Any]) -> Batch:
        """Cancel the job of the one batch that there is; return it when no worker is at it."""
        running.cancel()
        batch = self.only()
        await eventually(lambda: not self.engine.generating and not batch.held())
        self.engine.script = tuple(tokens("a"))
        return batch

    async def get(self, batch: Batch, job_id: str = "job-2") -> dict[str, Any]:
        request = {"route": f"/v1/batches/{batch.id}", "method": "GET"}
        found: dict[str, Any] = await self.answered(request, job_id)
        return found

    def results(self, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return results(self.root, batch)
