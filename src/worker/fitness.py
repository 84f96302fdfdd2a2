"""The worker's own fitness check, which the SDK runs before it takes jobs: an answer."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from worker.engine import Engines
from worker.record import JobRecord

if TYPE_CHECKING:
    from worker.app import Worker


def check_of(worker: "Worker", engines: Engines) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a check that raises RuntimeError if the worker does not answer."""
    job = job_for(engines)

    async def engine_answers() -> None:
        # With a record of its own, which is not written: it is no job of a caller.
        async for chunk in worker.handle(job, JobRecord(job["id"])):
            if "error" in chunk:
                raise RuntimeError(chunk["error"])

    return engine_answers


def job_for(engines: Engines) -> dict[str, Any]:
    """Return a job that asks for a token; for what generates none, one for its health."""
    # A token's id in place of text, because there may be no tokenizer.
    token = {"prompt": [0], "sampling_params": {"max_tokens": 1}}
    generates = engines.serve and "generate" in engines.main.model.tasks
    return {"id": "fitness-check", "input": token if generates else {"route": "/health"}}
