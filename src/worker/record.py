"""The record of a job, for its line in the log and its receipt, without its prompt and answer."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

from worker import metrics

log = logging.getLogger(__name__)

# Status of a job without a complete answer: it was cancelled, or is still running.
UNANSWERED = 499
# Maximum characters of a job's id in the log.
MAX_LOGGED_ID = 200
# Measures the duration of a block that posts a chunk or a result to the platform.
time_delivery = metrics.DELIVERY_SECONDS.time


@dataclass(slots=True)
class Usage:
    """Token counts of an answer so far, or None if not counted; updated on the engine's loop."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    # Whether the answer ended at DEFAULT_MAX_TOKENS because the job set no limit.
    is_truncated: bool = False

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens = (self.prompt_tokens or 0) + prompt_tokens
        self.output_tokens = (self.output_tokens or 0) + output_tokens


@dataclass(slots=True)
class EngineUse:
    """The work of the engines for one job, as the sum of the job's requests that have ended.

    A job with a list or a batch has many requests. Times are ``time.monotonic``.
    """

    whole: "EngineUse | None" = None  # the job's use that this one is a part of
    has_parts: bool = False  # whether other uses are parts of this one
    model: str | None = None  # the base model or adapter that computed the last request
    requests: int = 0  # also those that run
    prompt_tokens: int = 0
    cached_tokens: int = 0  # tokens of prompts that were not computed again
    output_tokens: int = 0  # also those that the caller did not get
    preemptions: int = 0  # of requests, which lost their memory and were computed again
    computed_from: float | None = None  # the first step of the first request
    first_token_at: float | None = None  # the first one of any request
    gpu_seconds: float = 0.0  # share of the GPUs' time, in seconds of one GPU
    _end_functions: set[Callable[[], None]] = field(default_factory=set)

    def create_part(self) -> "EngineUse":
        """Return a use for a part of the job, such as a line of a batch, which counts here, too."""
        self.has_parts = True
        return EngineUse(self)

    def start_request(self, end: Callable[[], None]) -> Callable[[], None]:
        """Count a request; return the function that ends it, which calls ``end`` once."""
        for use in self._with_wholes():
            use.requests += 1

        def end_once() -> None:
            # A request may end on the engine's loop while ``end_requests`` runs on the jobs' loop.
            # Only one of them can remove the function from the set.
            try:
                self._end_functions.remove(end_once)
            except KeyError:
                return
            end()

        self._end_functions.add(end_once)
        return end_once

    def end_requests(self) -> None:
        """End the requests that still run: their job has ended, or their engine has died."""
        for end in tuple(self._end_functions):
            end()

    def add(self, ended: "EngineUse") -> None:
        """Add the work for a request that has ended, here and to the whole."""
        for use in self._with_wholes():
            use.model = ended.model
            use.prompt_tokens += ended.prompt_tokens
            use.cached_tokens += ended.cached_tokens
            use.output_tokens += ended.output_tokens
            use.preemptions += ended.preemptions
            use.gpu_seconds += ended.gpu_seconds
            use.computed_from = min(
                filter(None, (use.computed_from, ended.computed_from)), default=None
            )
            use.first_token_at = min(
                filter(None, (use.first_token_at, ended.first_token_at)), default=None
            )

    def _with_wholes(self) -> Iterator["EngineUse"]:
        use: EngineUse | None = self
        while use is not None:
            yield use
            use = use.whole


# The use to which requests are charged that are sent in this context.
engine_use: ContextVar[EngineUse] = ContextVar("engine_use")


@dataclass(slots=True)
class JobRecord:
    """The log record of one job. Times are in seconds (``time.monotonic``).

    ``Worker.handle`` fills in most fields. A caller that passes the record to it counts the chunks
    and the retried posts, and logs the record.
    """

    id: str
    received_at: float = field(default_factory=time.monotonic)
    limit_s: float | None = None  # None if the job's policy sets no limit
    route: str = "none"  # such as "/v1/chat/completions", "raw" or "list"
    status: int = 200  # 499 if the job was cancelled
    usage: Usage = field(default_factory=Usage)
    submitted_at: float | None = None  # to the engine; None if it never was
    first_piece_at: float | None = None  # of the answer
    streamed: bool = False
    is_whole: bool = False  # the answer is one yield that only the job's result contains
    chunks: int = 0  # yields
    posts_retried: int = 0
    is_counted: bool = False  # in the worker's metrics
    use: EngineUse = field(default_factory=EngineUse)
    user: str | None = None  # the caller's name for its user
    labels: Mapping[str, str] = field(default_factory=dict)  # the caller's metadata for receipts
    batch: str | None = None  # id of the batch whose line this is; None for a job
    receipt: dict[str, Any] | None = None

    @classmethod
    def from_job(cls, job: dict[str, Any]) -> Self:
        """Return the record of a job as the platform sent it, and count the job as running."""
        policy = job.get("policy")
        limit_ms = policy.get("executionTimeout") if isinstance(policy, dict) else None
        record = cls(str(job.get("id", "")), is_counted=True)
        metrics.RUNNING_JOBS.add()
        if isinstance(limit_ms, int | float) and limit_ms > 0 and limit_ms is not True:
            record.limit_s = limit_ms / 1000
        return record

    def count_retried_post(self) -> None:
        self.posts_retried += 1
        metrics.POSTS_RETRIED.inc()

    def write_to_log(self) -> None:
        """Log the record, and add it to the metrics; call this when the job has ended."""
        values = {
            "job": self.id[:MAX_LOGGED_ID],
            "route": self.route,
            "status": self.status,
            "prompt_tokens": self.usage.prompt_tokens,
            "output_tokens": self.usage.output_tokens,
            "queue_ms": elapsed_ms(self.received_at, self.submitted_at),
            "first_token_ms": elapsed_ms(self.received_at, self.first_piece_at),
            "total_ms": elapsed_ms(self.received_at, time.monotonic()),
            "chunks": self.chunks,
            "posts_retried": self.posts_retried,
        }
        if self.usage.is_truncated:
            values["cut_by"] = "DEFAULT_MAX_TOKENS"
        text = " ".join(f"{key}={'-' if value is None else value}" for key, value in values.items())
        log.info("%s", text, extra={"fields": values})
        if not self.is_counted:
            return
        metrics.CHUNKS.inc(self.chunks)
        if self.submitted_at is not None:
            metrics.QUEUE_SECONDS.observe(self.submitted_at - self.received_at)
        if self.streamed and self.first_piece_at is not None:
            metrics.FIRST_TOKEN_SECONDS.observe(self.first_piece_at - self.received_at)
        # The end of the last job causes a push, which needs all of its figures.
        metrics.RUNNING_JOBS.remove(self.status)


def elapsed_ms(begin: float, end: float | None) -> float | None:
    """Return the milliseconds between two times in seconds; None if there is no end."""
    return None if end is None else round(1000 * (end - begin), 1)
