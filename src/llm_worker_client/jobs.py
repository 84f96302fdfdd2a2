"""Submits, follows and cancels a job of the platform, as sequences of steps without I/O."""

import json
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from llm_worker_client.mapping.requests import MAX_JOB_BYTES, MIN_WAIT_MS
from llm_worker_client.mapping.responses import GATEWAY_GAVE_UP, Refusal
from llm_worker_client.steps import (
    Pause,
    PlatformReply,
    PlatformRequest,
    PlatformUnreachable,
    ReadTimedOut,
    Steps,
)

# Maximum bytes of a body for /run. Larger bodies go to /runsync.
MAX_RUN_BYTES = 10_000_000
# Seconds before each retry if the platform's response contains no delay.
RETRY_DELAYS = (0.25, 0.5, 1.0, 2.0, 4.0)
MAX_RETRY_DELAY = 30.0
# Timeout in seconds for a request to /runsync, which waits for the end of a job for MIN_WAIT_MS.
RUNSYNC_TIMEOUT_S = 31.0
# Timeout in seconds for a poll of a job.
POLL_TIMEOUT_S = 60.0
# Empty polls that return faster than this (in seconds) are not long polls, so a pause follows them.
LONG_POLL_MIN_S = 0.1
MIN_POLL_DELAY, MAX_POLL_DELAY = 0.05, 0.5
COMPLETED = "COMPLETED"
QUEUED = "IN_QUEUE"
ENDED_STATUSES = (COMPLETED, "FAILED", "CANCELLED", "TIMED_OUT")
# Statuses of a gateway that has no response of the platform, which may have received the request.
GATEWAY_TIMEOUTS = (504, 520, 522, GATEWAY_GAVE_UP)

# The platform's report of a job: its id, its status, and its output or error.
Report = dict[str, Any]
# Handles one yield of a job; returns True if the caller needs no further yields.
OutputHandler = Callable[[Any], Steps[bool]]
# Handles the progress that a running job reports.
ProgressHandler = Callable[[Any], None]


@dataclass(slots=True)
class Job:
    """The known state of a job."""

    id: str | None = None  # None until the platform has accepted the job
    is_over: bool = False  # whether the job no longer needs to be cancelled
    output_count: int = 0  # yields that the handler has received


def send_with_retries(
    request: PlatformRequest, *, is_repeatable: bool, final_statuses: Collection[int] = ()
) -> Steps[PlatformReply]:
    """Send a request, retry it after temporary failures, and return the last reply.

    A request that may have arrived is sent again only if it ``is_repeatable``. Replies with one of
    the ``final_statuses`` cause no retry.
    """
    for delay in RETRY_DELAYS:
        wait_s = delay
        try:
            reply: PlatformReply = yield request
        except PlatformUnreachable as error:
            if error.may_have_arrived and not is_repeatable:
                raise
        else:
            is_temporary = reply.status == 429 or (reply.status >= 500 and is_repeatable)
            if not is_temporary or reply.status in final_statuses:
                return reply
            wait_s = _retry_delay(reply, delay)
        yield Pause(wait_s)
    reply = yield request
    return reply


def cancel_job(job_id: str) -> Steps[None]:
    """Cancel a job; this has no effect on a job that has ended."""
    yield from send_with_retries(PlatformRequest("POST", f"/cancel/{job_id}"), is_repeatable=True)


class JobRun:
    """Submits a job and follows it to its end; updates ``job``.

    ``timeout_s`` are the seconds to wait for new output; None for no timeout. ``follow`` and
    ``wait_for_end`` take the report that ``submit`` returned.

    Raises:
        ReadTimedOut: If no output has arrived within the timeout.
        PlatformUnreachable: If the platform doesn't respond.
        Refusal: If the platform rejects a request, for instance because it doesn't know the job.
    """

    def __init__(self, job: Job, timeout_s: float | None = None) -> None:
        self._job = job
        self._timeout_s = timeout_s
        self._last_output_at = time.monotonic()

    def submit(self, payload: dict[str, Any], *, is_read_only: bool) -> Steps[Report]:
        """Submit a job; return the platform's first report, which may already be the last one.

        ``payload`` has the job's input, and other fields for the platform. A job that
        ``is_read_only`` changes nothing, so that it may run twice.
        """
        content = json.dumps(payload, separators=(",", ":")).encode()
        if len(content) > MAX_JOB_BYTES:
            raise Refusal(413, f"The request has more than {MAX_JOB_BYTES:,} bytes as a job.")
        request = self._create_job_request(
            content, sync=is_read_only or len(content) > MAX_RUN_BYTES
        )
        reply = yield from send_with_retries(
            request, is_repeatable=is_read_only, final_statuses=GATEWAY_TIMEOUTS
        )
        if reply.status in GATEWAY_TIMEOUTS:
            # The id of this job is lost. Unlike /runsync, /run responds immediately.
            self._check_timeout()
            if not is_read_only:
                message = f"The platform's gateway answers {reply.status}: the job may still run."
                raise Refusal(GATEWAY_GAVE_UP, message)
            request = self._create_job_request(content, sync=False)
            reply = yield from send_with_retries(request, is_repeatable=True)
        report = parse_report(reply)
        if "id" not in report:
            raise Refusal(502, "The platform's response contains no job.")
        self._job.id = str(report["id"])
        return report

    def follow(self, report: Report, on_output: OutputHandler) -> Steps[Report | None]:
        """Pass each yield to a handler; return the last report, or None if the handler is done."""
        if report.get("status") not in ENDED_STATUSES:
            report = yield from self._poll_stream(on_output)
        if self._job.is_over:
            return None
        has_no_output = report.get("output") is None and report.get("error") is None
        if has_no_output and (self._job.output_count == 0 or report.get("status") != COMPLETED):
            # The status contains all yields, also of workers that don't stream and of failed polls.
            report = yield from self.wait_for_end((yield from self.poll_status()))
        for output in read_outputs(report)[self._job.output_count :]:
            yield from self._pass_output_on(output, on_output)
        if self._job.is_over:
            return None
        self._job.is_over = True
        return report

    def wait_for_end(
        self, report: Report, on_progress: ProgressHandler = lambda _: None
    ) -> Steps[Report]:
        """Wait for the end of a job; return its last report, which contains all yields."""
        pause = MIN_POLL_DELAY
        while report.get("status") not in ENDED_STATUSES:
            on_progress(report.get("output"))
            self._check_timeout()
            yield Pause(pause)
            pause = min(2 * pause, MAX_POLL_DELAY)
            report = yield from self.poll_status()
        return report

    def _poll_stream(self, on_output: OutputHandler) -> Steps[Report]:
        """Pass on yields as they arrive, until ``on_output`` returns True or the job has no more.

        Returns:
            The last report; the job's status if a poll failed, as the yields in it may be lost.
        """
        pause = MIN_POLL_DELAY
        while True:
            started_at = time.monotonic()
            reply: PlatformReply | None = None
            with suppress(PlatformUnreachable):
                request = self._create_poll_request("stream")
                reply = yield from send_with_retries(request, is_repeatable=False)
            if has_failed := reply is None or reply.status >= 500:
                report = yield from self.poll_status()
                # A job that no worker has taken has no yields to lose.
                if report.get("status") != QUEUED:
                    return (yield from self.wait_for_end(report))
            else:
                report = parse_report(reply)
            # It may be large, and a caller may read its yields slowly.
            del reply
            chunks = report.get("stream") or []
            for chunk in chunks:
                yield from self._pass_output_on(chunk.get("output"), on_output)
            if self._job.is_over or (report.get("status") in ENDED_STATUSES and not chunks):
                return report
            self._check_timeout()
            pause = MIN_POLL_DELAY if chunks else min(2 * pause, MAX_POLL_DELAY)
            is_quick = has_failed or time.monotonic() - started_at < LONG_POLL_MIN_S
            if not chunks and is_quick:
                yield Pause(pause)

    def poll_status(self) -> Steps[Report]:
        self._check_timeout()
        try:
            reply = yield from send_with_retries(
                self._create_poll_request("status"), is_repeatable=True
            )
        except PlatformUnreachable:
            # The timeout of the request is the remaining time.
            self._check_timeout()
            raise
        return parse_report(reply)

    def _pass_output_on(self, output: Any, on_output: OutputHandler) -> Steps[None]:
        if self._job.is_over:
            return
        self._last_output_at = time.monotonic()
        self._job.output_count += 1
        self._job.is_over = yield from on_output(output)

    def _create_job_request(self, content: bytes, *, sync: bool) -> PlatformRequest:
        path, timeout_s = "/run", self._request_timeout_s(POLL_TIMEOUT_S)
        if sync:
            path, timeout_s = f"/runsync?wait={MIN_WAIT_MS}", RUNSYNC_TIMEOUT_S
        return PlatformRequest("POST", path, content, timeout_s, starts_job=True)

    def _create_poll_request(self, operation: str) -> PlatformRequest:
        timeout_s = self._request_timeout_s(POLL_TIMEOUT_S)
        return PlatformRequest("GET", f"/{operation}/{self._job.id}", timeout_s=timeout_s)

    def _request_timeout_s(self, max_s: float) -> float:
        """Return the timeout of a request: the remaining time, at most ``max_s``."""
        if self._timeout_s is None:
            return max_s
        return max(0.001, min(max_s, self._last_output_at + self._timeout_s - time.monotonic()))

    def _check_timeout(self) -> None:
        waited_s = time.monotonic() - self._last_output_at
        if self._timeout_s is not None and waited_s >= self._timeout_s:
            raise ReadTimedOut


def read_outputs(report: Report) -> list[Any]:
    """Return the yields in the last report of a job; an output that is not a list is one yield."""
    output = report.get("output")
    if output is None:
        return []
    return output if isinstance(output, list) else [output]


def parse_report(reply: PlatformReply) -> Report:
    """Return the platform's report of a job; raise ``Refusal`` if the reply is an error."""
    if reply.status in (401, 403):
        raise Refusal(reply.status, "The platform refuses the account's API key.")
    try:
        report = json.loads(reply.content)
    except ValueError:
        report = None
    if reply.status == 200 and isinstance(report, dict):
        return report
    content = reply.content[:500].decode(errors="replace").strip()
    status = reply.status if 400 <= reply.status <= 599 else 502
    retry_after = _retry_delay(reply, 1.0) if status in (429, 502, 503, 504) else None
    raise Refusal(status, f"The platform answers {reply.status}: {content}", None, retry_after)


def _retry_delay(reply: PlatformReply, default: float) -> float:
    value = reply.headers.get("retry-after", "")
    return min(float(value), MAX_RETRY_DELAY) if value.isdecimal() else default
