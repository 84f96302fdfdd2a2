"""Answers one request to a deployed endpoint, as a sequence of steps without I/O."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from tempfile import SpooledTemporaryFile
from typing import Any

from llm_worker_client.jobs import COMPLETED, Job, JobRun, parse_report, read_outputs
from llm_worker_client.mapping import responses
from llm_worker_client.mapping.forms import MAX_FILE_BYTES, Form
from llm_worker_client.mapping.requests import (
    CONTENT_PART_BYTES,
    ForwardedRequest,
    JobRequest,
    OutputKind,
    Request,
    convert_request,
    find_dialect,
)
from llm_worker_client.mapping.responses import Refusal, refusal_from_report
from llm_worker_client.steps import (
    FileNotStored,
    PlatformReply,
    PlatformRequest,
    PlatformUnreachable,
    ReadTimedOut,
    ResponseHead,
    Step,
    Steps,
    StoreFile,
)

# Time limit in seconds of jobs for batches and fine-tunes; the platform's default is 10 minutes.
LONG_JOB_S = 24 * 3600
LONG_JOB_POLICY = {"executionTimeout": LONG_JOB_S * 1000, "ttl": 2 * LONG_JOB_S * 1000}
RUN_WITH_KEY = "run_with"
# Bytes of a file's content that stay in memory until it is sent as JSON; more are on the disk.
MAX_SPOOLED_BYTES = 2**20
NO_RESULT_MESSAGE = "The job has no result: the platform stores no result above 20 MB."
# Seconds to wait for the platform's response to a forwarded request.
FORWARD_TIMEOUT_S = 330.0
FORWARDED_HEADERS = ("content-type", "retry-after")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
# Number of digits of an integer that exceeds the size of every file.
_MAX_DIGITS = 20


class Exchange:
    """Answers one request by running jobs or by forwarding the request to the platform's API.

    ``timeout_s`` are the seconds to wait for new output; None for no timeout.
    """

    def __init__(self, request: Request, endpoint: str, timeout_s: float | None = None) -> None:
        self._request = request
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self.job = Job()
        self._has_sent_head = False
        # The last events that were sent; empty if the response is not an event stream.
        self._last_events = b""

    def steps(self) -> Steps[None]:
        """Yield the steps to perform, and the head and body parts of the response among them.

        Raises:
            ReadTimedOut: If no output has arrived within the timeout.
            PlatformUnreachable: If a job or the connection fails in the middle of a file.
        """
        try:
            target = convert_request(self._request, self._endpoint)
            if isinstance(target, ForwardedRequest):
                yield from self._forward_request(target)
            else:
                yield from self._run_job_request(target)
        except Refusal as refusal:
            yield from self._report_refusal(refusal)
        except PlatformUnreachable as error:
            reason = f"The platform can't be reached: {error}"
            yield from self._report_refusal(Refusal(502, reason, None, 1.0))

    def _forward_request(self, target: ForwardedRequest) -> Steps[None]:
        """Forward a request to the platform's API; never cancel a job that the request starts."""
        method, body = self._request.method, self._request.body or None
        reply: PlatformReply = yield PlatformRequest(method, target.path, body, FORWARD_TIMEOUT_S)
        if target.wait_s is not None and reply.status == 200:
            reply = yield from self._wait_for_forwarded_job(reply, target.wait_s)
        headers = {name: reply.headers[name] for name in FORWARDED_HEADERS if name in reply.headers}
        yield ResponseHead(reply.status, headers)
        yield reply.content

    def _wait_for_forwarded_job(self, reply: PlatformReply, wait_s: float) -> Steps[PlatformReply]:
        """Return the reply with the last report of its job, within ``wait_s``."""
        report = parse_report(reply)
        job = Job(str(report.get("id")))
        timeout_s = wait_s if self._timeout_s is None else min(wait_s, self._timeout_s)
        try:
            report = yield from JobRun(job, timeout_s).wait_for_end(report)
        except ReadTimedOut:
            if timeout_s != wait_s:
                raise
            report = yield from JobRun(job).poll_status()
        except (Refusal, PlatformUnreachable):
            # The caller needs the job's id, with which it can poll the job itself.
            return reply
        return replace(reply, content=json.dumps(report).encode())

    def _run_job_request(self, job_request: JobRequest) -> Steps[None]:
        if job_request.large_form is not None:
            job_request = yield from self._store_upload(job_request, job_request.large_form)
        if job_request.kind is OutputKind.CONTENT:
            yield from self._send_file_content(job_request)
            return
        on_output = self._send_events if job_request.kind is OutputKind.EVENTS else self._send_whole
        run = JobRun(self.job, self._timeout_s)
        payload = {"input": job_request.input}
        submitted = yield from run.submit(payload, is_read_only=job_request.is_read_only)
        report = yield from run.follow(submitted, on_output)
        if report is None:
            return
        if report.get("status") != COMPLETED:
            raise refusal_from_report(report)
        if not self._has_sent_head:
            raise Refusal(502, NO_RESULT_MESSAGE)

    def _send_whole(self, output: Any) -> Steps[bool]:
        if isinstance(output, dict) and RUN_WITH_KEY in output:
            # Submit the job that runs a new batch or fine-tune. If that fails, the response has
            # that job, and the caller can submit it.
            payload = {**output[RUN_WITH_KEY], "policy": LONG_JOB_POLICY}
            with suppress(Refusal, PlatformUnreachable):
                yield from JobRun(Job()).submit(payload, is_read_only=False)
                output = {name: value for name, value in output.items() if name != RUN_WITH_KEY}
        self.job.is_over = True
        yield from self._send_response(responses.whole_response(output, self.job.id))
        return True

    def _send_events(self, output: Any) -> Steps[bool]:
        if not self._has_sent_head and not responses.is_events(output):
            return (yield from self._send_whole(output))
        if not self._has_sent_head:
            self._has_sent_head = True
            headers = {"cache-control": "no-cache"}
            yield responses.create_head(200, responses.EVENTS, self.job.id, **headers)
        self._last_events = responses.encode_events(output)
        # Clients hang up after the last event, which must not cancel the job.
        self.job.is_over = responses.is_end_of_stream(self._last_events)
        yield self._last_events
        return self.job.is_over

    def _store_upload(self, job_request: JobRequest, form: Form) -> Steps[JobRequest]:
        """Store a large file on the volume, and return the job that registers it."""
        try:
            with form:
                key: str = yield StoreFile(form.file_path, form.filename)
        except FileNotStored as error:
            message = str(error)
            if error.status == 413:
                message = (
                    f"The file has {form.file_size:,} bytes, more than a job's {MAX_FILE_BYTES:,}. "
                    f"{error} The client then uploads it by the volume's S3 API. "
                    "Or upload it yourself, and post "
                    '{"path": "<its key>"} to /v1/files.'
                )
            raise Refusal(error.status, message) from None
        return job_request.with_stored_file(key)

    def _send_file_content(self, job_request: JobRequest) -> Steps[None]:
        """Send the content of a file, using one job for each part of it.

        A client that accepts JSON gets an object with the whole content; others get the bytes, or
        only those that the ``Range`` header requests.
        """
        file_id, begin, end = job_request.json_file_id, 0, None
        status, headers = 200, {"accept-ranges": "bytes"}
        if file_id is None and job_request.range_header:
            outputs = yield from self._run_job(job_request.for_file_details())
            try:
                total_size = int(outputs[0]["bytes"])
            except (KeyError, TypeError, ValueError):
                message = "The worker's answer lacks the size of the file."
                raise Refusal(502, message) from None
            if byte_range := _parse_range(job_request.range_header, total_size):
                begin, end = byte_range
                status, headers["content-range"] = 206, f"bytes {begin}-{end - 1}/{total_size}"

        # Only an object is stored until it is complete.
        with SpooledTemporaryFile(max_size=MAX_SPOOLED_BYTES) as spool:
            content = None if file_id is None else responses.JsonContent(file_id, spool)
            while end is None or begin < end:
                size = CONTENT_PART_BYTES if end is None else min(CONTENT_PART_BYTES, end - begin)
                outputs = yield from self._run_job(job_request.for_content_part(begin, size))
                part = b"".join(map(responses.decode_file_content, outputs))
                del outputs
                is_last, begin = len(part) != size, begin + size
                if content is not None:
                    content.store(part)
                else:
                    if not self._has_sent_head:
                        self._has_sent_head = True
                        yield responses.create_head(
                            status, responses.BINARY, self.job.id, **headers
                        )
                    yield part
                # While the next part is fetched, this one is not in memory.
                del part
                if is_last:
                    break
            if content is not None:
                self._has_sent_head = True
                yield responses.create_head(200, responses.JSON, self.job.id)
                yield from content.body_parts()

    def _run_job(self, job_request: JobRequest) -> Steps[list[Any]]:
        self.job = Job()
        run = JobRun(self.job, self._timeout_s)
        payload = {"input": job_request.input}
        submitted = yield from run.submit(payload, is_read_only=job_request.is_read_only)
        report = yield from run.wait_for_end(submitted)
        self.job.is_over = True
        if report.get("status") != COMPLETED:
            raise refusal_from_report(report)
        if not (outputs := read_outputs(report)):
            raise Refusal(502, NO_RESULT_MESSAGE)
        return outputs

    def _send_response(self, response: tuple[ResponseHead, bytes]) -> Iterator[Step]:
        self._has_sent_head = True
        yield from response

    def _report_refusal(self, refusal: Refusal) -> Iterator[Step]:
        """Send an error; within a stream as an event, unless the stream's last event is an error.

        Raises:
            PlatformUnreachable: If a part of a file has already been sent.
        """
        dialect = find_dialect(self._request, self._endpoint)
        if not self._has_sent_head:
            yield from self._send_response(responses.error_response(refusal, dialect, self.job.id))
        elif not self._last_events:
            raise PlatformUnreachable(str(refusal), may_have_arrived=True)
        elif not responses.ends_with_error(self._last_events):
            yield responses.error_event(refusal, dialect, self.job.id)


def _parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the start and the end (exclusive) of the requested bytes; None for the whole content.

    Several ranges also return None: a server may answer them with the whole content.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if not match or not any(match.groups()):
        return None
    # Drop further digits: Python limits their number, and a longer one exceeds every file's size.
    first, last = (
        int(digits.lstrip("0")[:_MAX_DIGITS] or 0) if digits else None for digits in match.groups()
    )
    if first is None:
        begin, end = max(0, size - (last or 0)), size
    else:
        if last is not None and last < first:
            return None
        begin, end = first, size if last is None else min(size, last + 1)
    if begin >= end:
        raise Refusal(416, f"Range: the content has {size:,} bytes")
    return begin, end
