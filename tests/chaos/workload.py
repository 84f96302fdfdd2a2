"""A worker that must not exit during a scenario, its jobs, and their outcomes."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from demo_model import ANSWERS
from support.processes.background import HUNG_S
from support.processes.emulated_endpoint import EmulatedEndpoint, emulated_endpoint

from emulator import Job, Status

ROUTE = "/v1/chat/completions"
# Parameters of a request that takes longer than all others here and than a short grace period.
LONG_PARAMS: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True, "n": 16}
GREEDY_PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 400}


class WorkerExited(Exception):
    """The worker exited on its own."""


@asynccontextmanager
async def start_watched_endpoint(
    environ: dict[str, str], log: Path, **options: Any
) -> AsyncIterator[EmulatedEndpoint]:
    """Start a worker; if it exits, cancel the block and raise `WorkerExited`."""
    async with emulated_endpoint(environ, log, **options) as endpoint:
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_cancel_on_exit(endpoint, task))
        try:
            yield endpoint
        except asyncio.CancelledError:
            if not watch.done():
                raise
            task.uncancel()
            last_line = [*endpoint.log.splitlines(), "nothing printed"][-1]
            raise WorkerExited(f"status {watch.result()}; {log}: {last_line}") from None
        finally:
            watch.cancel()


async def _cancel_on_exit(endpoint: EmulatedEndpoint, task: asyncio.Task[Any]) -> int:
    while (status := endpoint.worker.process.poll()) is None:
        await asyncio.sleep(0.5)
    task.cancel()
    return status


class Ending(StrEnum):
    """The outcome of a job."""

    WHOLE = "COMPLETED with its whole text"
    WRONG = "COMPLETED with another text"
    RETRYABLE = "FAILED as retryable"
    REFUSED = "FAILED, not retryable"
    OPEN = "IN_PROGRESS"
    QUEUED = "IN_QUEUE"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"


class IncompleteAnswer(Exception):
    """An answer has no proper end."""


def job_input(text: str, params: dict[str, Any], *, raw: bool, stream: bool) -> dict[str, Any]:
    """Return the input of a raw job or of an OpenAI job."""
    messages = [{"role": "user", "content": text}]
    if raw:
        return {"messages": messages, "sampling_params": params, "stream": stream}
    body = {"messages": messages, **params, "stream": stream}
    return {"openai_route": ROUTE, "openai_input": body}


def known_job(rng: random.Random) -> tuple[dict[str, Any], str]:
    """Return the input of a job whose answer the demo model has memorized, and that answer."""
    question = rng.choice(sorted(ANSWERS))
    raw, stream = rng.random() < 0.5, rng.random() < 0.5
    return job_input(question, GREEDY_PARAMS, raw=raw, stream=stream), ANSWERS[question]


def long_job(rng: random.Random, *, stream: bool) -> dict[str, Any]:
    return job_input("Hi", LONG_PARAMS, raw=rng.random() < 0.5, stream=stream)


def is_stream(job: Job) -> bool:
    return bool(job.input.get("openai_input", job.input).get("stream"))


async def wait_until_running(job: Job, chunks: int = 0) -> bool:
    """Wait until a job runs and has sent some chunks; return whether it is still running."""

    def is_reached() -> bool:
        return job.has_ended or (job.started_at is not None and len(job.chunks) >= chunks)

    return await job.changed.wait_for(is_reached, HUNG_S) and not job.has_ended


def ending_of(job: Job, text: str | None = None) -> Ending:
    """Return the outcome of a job.

    Args:
        job: The job; it must have a single choice if ``text`` is set.
        text: The expected text; None accepts any complete text.
    """
    if job.status is Status.COMPLETED:
        return _completed_ending(job, text)
    if job.status is Status.FAILED:
        return Ending.RETRYABLE if _is_retryable(job.error) else Ending.REFUSED
    if job.status is Status.IN_PROGRESS:
        return Ending.OPEN
    if job.status is Status.IN_QUEUE:
        return Ending.QUEUED
    return Ending(job.status.value)


def details(job: Job) -> str:
    """Describe the result of a job whose outcome is not the expected one."""
    if job.error is not None:
        return repr(job.error[:300])
    try:
        return f"{_read_texts(job)!r:.1000}"
    except IncompleteAnswer as error:
        return str(error)


def format_counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {ending}" for ending, count in counter.most_common())


def text_of(yields: list[Any]) -> str:
    """Return the text of the first choice of an answer in any format.

    Raises:
        IncompleteAnswer: If the answer is not complete.
    """
    if yields and all(isinstance(part, str) for part in yields):
        return _text_of_events("".join(yields))
    try:
        choices = [part["choices"][0] for part in yields]
        if not choices[-1]["finish_reason"]:
            raise IncompleteAnswer("the end is missing")
        if "message" in choices[0]:
            return str(choices[0]["message"]["content"])
        return "".join(text for choice in choices for text in choice["tokens"])
    except (KeyError, IndexError, TypeError) as error:
        raise IncompleteAnswer(f"not an answer: {yields!r:.200}") from error


def _text_of_events(stream_text: str) -> str:
    *events, done, rest = stream_text.split("\n\n")
    if (done, rest) != ("data: [DONE]", ""):
        raise IncompleteAnswer(f"the stream ends with {stream_text[-100:]!r}")
    bodies = [json.loads(event.removeprefix("data: ")) for event in events]
    if any("error" in body for body in bodies):
        raise IncompleteAnswer(f"the stream ends with {stream_text[-300:]!r}")
    # Events with the usage have no choices.
    choices = [choice for body in bodies for choice in body["choices"] if choice["index"] == 0]
    if not any(choice["finish_reason"] for choice in choices):
        raise IncompleteAnswer("the end is missing")
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def _read_texts(job: Job) -> list[str]:
    """Return the text of a job's output, and of its chunks if it streams.

    Raises:
        IncompleteAnswer: If a text is not complete.
    """
    views = [job.output or []]
    if is_stream(job):
        views.append([chunk.output for chunk in job.chunks])
    return [text_of(view) for view in views]


def _completed_ending(job: Job, text: str | None) -> Ending:
    try:
        texts = _read_texts(job)
    except IncompleteAnswer:
        return Ending.WRONG
    expected = texts[0] if text is None else text
    return Ending.WHOLE if {*texts} == {expected} else Ending.WRONG


def _is_retryable(error: str | None) -> bool:
    try:
        return bool(json.loads(error or "")["error"]["retryable"])
    except (ValueError, KeyError, TypeError):
        return False
