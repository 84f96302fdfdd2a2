"""Batches in tests: their inputs, jobs that run them, and what must hold of their files."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.engine.scripted import CHAT, ScriptedEngine, failure, settings, until
from worker.app import Worker
from worker.batches.state import Batch
from worker.batches.store import Batches


def line(name: str, endpoint: str = CHAT, **body: Any) -> dict[str, Any]:
    """Return a line of an input."""
    body = body or {"messages": [{"role": "user", "content": name}]}
    return {"custom_id": name, "method": "POST", "url": endpoint, "body": body}


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    return [line(f"c{index}", **body) for index in range(count)]


def as_text(found: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in found)


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


def only(root: Path) -> Batch:
    """Return the one batch that there is."""
    (found,) = Batches.of(settings(FILES_PATH=str(root))).all()
    return found


async def begun(
    worker: Worker, engine: ScriptedEngine, most: int, **spec: Any
) -> asyncio.Task[Any]:
    """Begin to run a batch in a job; return it when more lines than so many were asked."""
    running = asyncio.create_task(answered(worker, {"batch": spec}))
    assert await until(lambda: len(engine.asked) > most)
    return running


async def given_up(root: Path, engine: ScriptedEngine, running: asyncio.Task[Any]) -> Batch:
    """Cancel the job of the one batch that there is; return it when no worker is at it."""
    running.cancel()
    batch = only(root)
    assert await until(lambda: not engine.generating and not batch.held())
    return batch


def content(root: Path, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a file; none, if there is no file."""
    if file_id is None:
        return []
    text = (root / "worker" / "files" / file_id / "content").read_text()
    assert text.endswith("\n")
    return [json.loads(one) for one in text.split("\n")[:-1]]


def results(root: Path, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the lines of the output and of the error file by custom_id: each stands once."""
    output = content(root, batch["output_file_id"])
    errors = content(root, batch["error_file_id"])
    names = [one["custom_id"] for one in output + errors]
    assert len(set(names)) == len(names)
    by_name = [{one["custom_id"]: one for one in file} for file in (output, errors)]
    return by_name[0], by_name[1]
