"""The connections to the platform: what a failed post means, and a way out of dead ones."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
from aiohttp import ClientSession, ClientTimeout, TraceConfig
from aiohttp_retry import JitterRetry

log = logging.getLogger(__name__)

# Seconds.
CONNECT_S = 5.0
POST_S = 30.0
# A large post may take longer: this is the slowest link that is good enough.
SLOWEST_LINK = 100_000  # bytes a second
# A process that did not run for so long was frozen.
FROZEN_S = 5.0
TICK_S = 1.0
# Failures of single calls are not worth a line in the log.
OUTAGE_S = 1.0
# Statuses below 500 after which the same request may succeed.
LATER = (408, 429)
# Gateways give these when they have passed a request on, and got no answer.
GIVEN_UP = (504, 520, 524)
# What breaks when the platform can't be reached, or stops in the middle of an answer.
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)

_pauses = JitterRetry(start_timeout=0.05, max_timeout=5.0, random_interval_size=0.7)


def pause_s(failures: int) -> float:
    """Return how long to wait after so many failures: 0.1 s, 0.2 s ... 5 s, plus up to 0.5 s."""
    # The library's power of two would overflow.
    return _pauses.get_timeout(min(failures, 10))


class NotDelivered(Exception):
    """A post has not arrived, or that is in doubt."""


class NotTaken(NotDelivered):
    """It certainly had no effect: no connection, or a status that says so. Try it again."""


class InDoubt(NotDelivered):
    """It was sent, and not answered: it may have arrived."""


class Refused(NotDelivered):
    """The platform does not want it: a second attempt would change nothing."""


@dataclass(frozen=True, slots=True)
class Urls:
    """The platform's addresses, with the worker's id in them.

    Args:
        take: of the next job; it has a query.
        stream: of chunks; ``$ID`` stands for the job's id. It has a query.
        done: of results, likewise.
    """

    take: str
    stream: str
    done: str

    def chunk(self, job_id: str) -> str:
        return _for_job(self.stream, job_id, is_stream=False)

    def result(self, job_id: str) -> str:
        # The SDK has it this way round.
        return _for_job(self.done, job_id, is_stream=True)

    def progress(self, job_id: str) -> str:
        return _for_job(self.done, job_id, is_stream=False)

    def next_jobs(self, limit: int, *, busy: bool) -> str:
        take = self.take
        if limit > 1:
            take = f"{take.replace('/job-take/', '/job-take-batch/')}&batch_size={limit}"
        return f"{take}&job_in_progress={int(busy)}"

    @property
    def stopped_jobs(self) -> str | None:
        """Where cancelled jobs are named; None if the platform has no such place."""
        stop = self.take.replace("/job-take/", "/job-stop/")
        return None if stop == self.take else stop


class Wire:
    """The connections to the platform. Enter it on the loop that uses it."""

    def __init__(self, urls: Urls, session: Callable[[TraceConfig], ClientSession]) -> None:
        """Make a wire; ``session`` makes a session that has the platform's key."""
        self.urls = urls
        # Called after a thaw, to hang up what waits for the platform.
        self.on_thaw: list[Callable[[], object]] = []
        self._make_session = session
        self._seen = time.time()
        self._failing_since: float | None = None
        self._outage = False
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._session = self._open_session()
        self._seen = time.time()
        self._clock = asyncio.create_task(self._watch_clock())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._clock.cancel()
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._session.close()

    @property
    def session(self) -> ClientSession:
        """The session for the next call."""
        self._notice_thaw()
        return self._session

    async def post(self, url: str, job_id: str, body: bytes) -> None:
        """Post JSON, once.

        Raises:
            NotDelivered: one of its subclasses.
        """
        sent = SimpleNamespace(begun=False)
        try:
            status = await self._status_of(url, job_id, body, sent)
        except UNREACHABLE as error:
            self.failed(error)
            raise (InDoubt if sent.begun else NotTaken)(repr(error)) from error
        if status < 300:
            self.succeeded()
            return
        failure = f"status {status}"
        if status < 500 and status not in LATER:
            raise Refused(failure)
        self.failed(failure)
        raise (InDoubt if status in GIVEN_UP else NotTaken)(failure)

    async def report(self, job: dict[str, Any], progress: Any) -> None:
        """Post a job's progress, once.

        Raises:
            NotDelivered: one of its subclasses.
        """
        body = json.dumps({"status": "IN_PROGRESS", "output": progress}).encode()
        await self.post(self.urls.progress(job["id"]), job["id"], body)

    def failed(self, error: object) -> None:
        """Note a call that failed; log it if none has succeeded for a while."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif not self._outage and now - self._failing_since > OUTAGE_S:
            self._outage = True
            log.warning("calls to the platform fail (%s): they are tried again", error)

    def succeeded(self) -> None:
        """Note a call that succeeded, after one that failed perhaps."""
        if self._failing_since is not None and self._outage:
            seconds = time.monotonic() - self._failing_since
            log.info("calls to the platform succeed again, after %.1f s", seconds)
        self._failing_since, self._outage = None, False

    async def _status_of(self, url: str, job_id: str, body: bytes, sent: SimpleNamespace) -> int:
        headers = {
            "charset": "utf-8",
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Request-ID": job_id,
        }
        total_s = POST_S + len(body) / SLOWEST_LINK
        async with self.session.post(
            url,
            data=body,
            headers=headers,
            # The library would follow a redirect without the body.
            allow_redirects=False,
            timeout=ClientTimeout(total=total_s, sock_connect=CONNECT_S),
            trace_request_ctx=sent,
        ) as response:
            # The status says it all: a body that breaks off afterwards is no failure.
            with contextlib.suppress(*UNREACHABLE):
                await response.read()
            return response.status

    def _open_session(self) -> ClientSession:
        trace = TraceConfig()
        trace.on_request_headers_sent.append(_note_sent)
        return self._make_session(trace)

    async def _watch_clock(self) -> None:
        while True:
            self._notice_thaw()
            await asyncio.sleep(TICK_S)

    def _notice_thaw(self) -> None:
        """Leave all connections behind if this process has not run for a while: they are dead."""
        # The time of day: clocks without it may stand still in a process that is frozen.
        now, seen = time.time(), self._seen
        self._seen = now
        if now - seen < FROZEN_S:
            return
        log.info("thawed after %.0f s", now - seen)
        old, self._session = self._session, self._open_session()
        closing = asyncio.create_task(_close_later(old))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        for hang_up in self.on_thaw:
            hang_up()


async def _note_sent(_: ClientSession, context: SimpleNamespace, __: object) -> None:
    """Note in a request's context that it has been sent, or a part of it."""
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.begun = True


async def _close_later(session: ClientSession) -> None:
    """Close a session when the last of its posts has ended."""
    try:
        await asyncio.sleep(10 * POST_S)
    finally:
        await session.close()


def _for_job(url: str, job_id: str, *, is_stream: bool) -> str:
    return f"{url.replace('$ID', job_id)}&isStream={str(is_stream).lower()}"
