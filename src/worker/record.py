"""What the log says of a job: one line when it has ended, without its prompt and its answer."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Self

log = logging.getLogger(__name__)

# The status of a job that has not been answered to its end: cancelled, or still running.
UNANSWERED = 499


@dataclass(slots=True)
class Usage:
    """The tokens of an answer so far, None if they are not counted. The engine's loop counts.

    ``cut`` is whether it ended at DEFAULT_MAX_TOKENS, since the job named no other limit.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cut: bool = False

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens = (self.prompt_tokens or 0) + prompt_tokens
        self.output_tokens = (self.output_tokens or 0) + output_tokens


@dataclass(slots=True)
class JobRecord:
    """One job's line in the log. Times are ``time.monotonic``'s, in seconds.

    ``Worker.handle`` fills in what it knows; whoever delivers the yields adds the posts, and
    writes the line.

    Args:
        id: the job's.
        taken_at: when this worker had the job.
        limit_s: the seconds that the platform gives the job; None if the job does not say so.
        route: "/v1/chat/completions", "raw", "list".
        status: of the answer, as an HTTP status; 499 if the job was cancelled.
        usage: of the answer, which updates it.
        begun_at: when the engine was asked; None if it never was.
        first_at: when the first piece of the answer was there.
        streamed: whether the caller asked for a stream.
        chunks: how many yields there were.
        posts_retried: how often a post to the platform was tried again.
    """

    id: str
    taken_at: float = field(default_factory=time.monotonic)
    limit_s: float | None = None
    route: str = "none"
    status: int = 200
    usage: Usage = field(default_factory=Usage)
    begun_at: float | None = None
    first_at: float | None = None
    streamed: bool = False
    chunks: int = 0
    posts_retried: int = 0

    @classmethod
    def of(cls, job: dict[str, Any]) -> Self:
        """Return the record of a job as the platform handed it over."""
        policy = job.get("policy")
        limit_ms = policy.get("executionTimeout") if isinstance(policy, dict) else None
        record = cls(str(job.get("id", "")))
        if isinstance(limit_ms, int | float) and limit_ms > 0 and limit_ms is not True:
            record.limit_s = limit_ms / 1000
        return record

    def write(self) -> None:
        """Log the line, now that the job has ended."""
        total_ms = _milliseconds(self.taken_at, time.monotonic())
        values = {
            "job": self.id,
            "route": self.route,
            "status": self.status,
            "prompt_tokens": self.usage.prompt_tokens,
            "output_tokens": self.usage.output_tokens,
            "queue_ms": _milliseconds(self.taken_at, self.begun_at),
            "first_token_ms": _milliseconds(self.taken_at, self.first_at),
            "total_ms": total_ms,
            "chunks": self.chunks,
            "posts_retried": self.posts_retried,
        }
        if self.usage.cut:
            values["cut_by"] = "DEFAULT_MAX_TOKENS"
        text = " ".join(
            f"{name}={'-' if value is None else value}" for name, value in values.items()
        )
        log.info("%s", text, extra={"fields": values})


def _milliseconds(begin: float, end: float | None) -> float | None:
    return None if end is None else round(1000 * (end - begin), 1)
