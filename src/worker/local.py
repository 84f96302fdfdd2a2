"""Runs jobs that no caller has sent: test jobs, unfinished work, and the SDK's fitness check."""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.errors import InvalidInput
from worker.json_lines import escape_line_breaks
from worker.record import JobRecord

if TYPE_CHECKING:
    from worker.app import Worker
    from worker.engine import Engines

TEST_INPUT = "test_input.json"
ROOT = Path(__file__).resolve().parents[2]


def read_test_job(text: str | None) -> dict[str, Any]:
    """Read and validate a job: a JSON string, or test_input.json here or in the repository."""
    source = "--test_input"
    if text is None:
        paths = (Path(TEST_INPUT), ROOT / TEST_INPUT)
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise InvalidInput(
                f"There is no {TEST_INPUT} here; write one or pass --test_input JSON."
            )
        source, text = str(path), path.read_text(encoding="utf-8")
    try:
        job = json.loads(text)
    except ValueError as broken:
        raise InvalidInput(f"{source} contains broken JSON: {broken}") from None
    if not isinstance(job, dict) or "input" not in job:
        raise InvalidInput(
            f'{source} contains no job: it looks like {{"input": {{"prompt": "Hi"}}}}.'
        )
    from worker.dialects import parse_input  # noqa: PLC0415 - most modes need it later

    # Check the input before the engine starts: a mistake costs no cold start.
    parse_input(job["input"])
    return {"id": "local", **job}


async def run_and_print(worker: "Worker", job: dict[str, Any]) -> int:
    """Run a job and print its yields and its text; return the exit status."""
    texts = []
    async for chunk in worker.handle(job):
        sys.stdout.write(escape_line_breaks(json.dumps(chunk, ensure_ascii=False)) + "\n")
        sys.stdout.flush()
        if isinstance(chunk, dict) and isinstance(chunk.get("error"), str):
            return _print_failure(json.loads(chunk["error"])["error"])
        events = decode_events(chunk)
        if error := next((event["error"] for event in events if "error" in event), None):
            return _print_failure(error)
        texts += [event_text(event) for event in events]
    sys.stdout.write(f"\n{''.join(texts)}\n")
    return 0


async def run_unfinished_work(worker: "Worker") -> int:
    """Run the unfinished work on the volume sequentially; return the exit status."""
    status = 0
    for work in await asyncio.to_thread(worker.list_unfinished_work):
        status |= await run_and_print(worker, {"id": str(uuid.uuid4()), "input": work.job_input()})
    return status


def _print_failure(error: dict[str, Any]) -> int:
    sys.stderr.write(f"The job failed: {error['message']}\n")
    return 1


def decode_events(chunk: Any) -> list[dict[str, Any]]:
    """Return the decoded events of a yield; an empty list for plain text such as metrics."""
    if isinstance(chunk, str):
        data = [line.removeprefix("data: ") for line in chunk.split("\n")]
        return [json.loads(line) for line in data if line.startswith("{")]
    return chunk if isinstance(chunk, list) else [chunk]


def event_text(event: dict[str, Any]) -> str:
    """Return the text of an event in any format: the first choice's, or one line per list item."""
    results = [event["result"]] if "result" in event else event.get("outputs")
    if results is not None:
        return "".join(f"{event_text(result)}\n" for result in results)
    output = event.get("output", event)
    if isinstance(output, dict) and isinstance(output.get("text"), str):
        return str(output["text"])
    choice: dict[str, Any] = next(iter(event.get("choices") or []), {})
    message = choice.get("delta") or choice.get("message") or {}
    return "".join(choice.get("tokens") or []) or choice.get("text") or message.get("content") or ""


def make_fitness_check(
    worker: "Worker", engines: "Engines"
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a check that raises RuntimeError if the worker does not answer."""
    job = fitness_job(engines)

    async def check_engine() -> None:
        # This job's own record is never logged: no caller has sent the job.
        async for chunk in worker.handle(job, JobRecord(job["id"])):
            if "error" in chunk:
                raise RuntimeError(chunk["error"])

    return check_engine


def fitness_job(engines: "Engines") -> dict[str, Any]:
    """Return a job that generates one token, or a health check if the model generates no text."""
    # Use a token id instead of text, because there may be no tokenizer.
    token = {"prompt": [0], "sampling_params": {"max_tokens": 1}}
    generates = engines.has_engine and "generate" in engines.main_engine.model.tasks
    return {"id": "fitness-check", "input": token if generates else {"route": "/health"}}
