"""Helpers for tests of batches: inputs, jobs that run batches, and checks of their files."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.engine.scripted import CHAT, ScriptedEngine, failure, settings, tokens
from support.processes.background import poll_until
from support.volume import all_records
from worker.app import Worker
from worker.batches.record import Batch, Batches


def line(name: str, endpoint: str = CHAT, **body: Any) -> dict[str, Any]:
    """Return one line of a batch's input."""
    body = body or {"messages": [{"role": "user", "content": name}]}
    return {"custom_id": name, "method": "POST", "url": endpoint, "body": body}


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    return [line(f"c{index}", **body) for index in range(count)]


def to_jsonl(objects: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in objects)


def batch_request(count: int, **keys: Any) -> dict[str, Any]:
    """Return a request for a batch that contains its lines."""
    return {"requests": lines(count), "endpoint": CHAT, **keys}


def worker_with_volume(root: Path, engine: ScriptedEngine, **environ: str) -> Worker:
    return Worker(engine.engines, settings(FILES_PATH=str(root), **environ))


async def run_job(worker: Worker, payload: dict[str, Any], job_id: str = "job-1") -> Any:
    """Return the only yield of a job."""
    (answer,) = [chunk async for chunk in worker.handle({"id": job_id, "input": payload})]
    return answer


async def run_batch(worker: Worker, job_id: str = "job-1", **spec: Any) -> dict[str, Any]:
    """Run a batch in a job, and return the batch."""
    answer = await run_job(worker, {"batch": spec}, job_id)
    batch: dict[str, Any] = answer["batch"]
    return batch


async def job_error(
    worker: Worker, payload: dict[str, Any], job_id: str = "job-1"
) -> dict[str, Any]:
    """Return the error of a job that must fail."""
    return failure([await run_job(worker, payload, job_id)])


def file_lines(root: Path, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a file; an empty list if there is no file."""
    if file_id is None:
        return []
    text = (root / "worker" / "files" / file_id / "content").read_text()
    assert text.endswith("\n")
    return [json.loads(item) for item in text.split("\n")[:-1]]


def results(root: Path, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the lines of the output file and of the error file by their custom_id.

    Each custom_id may occur only once in both files.
    """
    files = [file_lines(root, batch[f"{name}_file_id"]) for name in ("output", "error")]
    output, errors = ({item["custom_id"]: item for item in file} for file in files)
    assert len(output | errors) == sum(map(len, files))
    return output, errors


class BatchWorker:
    """A worker with a volume, and an engine that answers four lines concurrently."""

    def __init__(self, root: Path, engine: ScriptedEngine) -> None:
        engine.slots = 4
        self.root, self.engine = root, engine
        self.worker = worker_with_volume(root, engine)
        self.batches = Batches(settings(FILES_PATH=str(root)))

    def only_batch(self) -> Batch:
        """Return the only batch on the volume."""
        (batch,) = all_records(self.batches)
        return batch

    async def run_job(self, payload: dict[str, Any], job_id: str = "job-1") -> Any:
        return await run_job(self.worker, payload, job_id)

    async def job_error(self, payload: dict[str, Any], job_id: str = "job-1") -> dict[str, Any]:
        return await job_error(self.worker, payload, job_id)

    async def run_batch(self, job_id: str = "job-1", **spec: Any) -> dict[str, Any]:
        return await run_batch(self.worker, job_id, **spec)

    async def start_batch(
        self, min_requests: int, worker: Worker | None = None, **spec: Any
    ) -> asyncio.Task[Any]:
        """Start a slow batch; return its job after more than ``min_requests`` requests."""
        self.engine.script = tuple(tokens("a", "b", pause=0.05))
        job = asyncio.create_task(run_job(worker or self.worker, {"batch": spec}))
        await poll_until(lambda: len(self.engine.requests) > min_requests)
        return job

    async def interrupted_batch(self, count: int = 300, **keys: Any) -> Batch:
        """Return a batch with some answered lines, on which no worker is working."""
        return await self.interrupt(await self.start_batch(20, **{**batch_request(count), **keys}))

    async def interrupt(self, job: asyncio.Task[Any]) -> Batch:
        """Cancel the job of the only batch; return the batch once no worker is working on it."""
        job.cancel()
        await asyncio.wait({job})
        batch = self.only_batch()
        await poll_until(lambda: not self.engine.active_requests and not batch.is_leased())
        self.engine.script = tuple(tokens("a"))
        return batch

    async def get_batch(self, batch: Batch, job_id: str = "job-2") -> dict[str, Any]:
        request = {"route": f"/v1/batches/{batch.id}", "method": "GET"}
        answer: dict[str, Any] = await self.run_job(request, job_id)
        return answer

    def results(self, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return results(self.root, batch)
