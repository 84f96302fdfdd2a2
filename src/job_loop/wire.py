"""HTTP client for the platform: classifies failed posts and replaces dead connections."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
from aiohttp import ClientSession
from aiohttp_retry import JitterRetry

from job_loop.connections import JOB_ID, ConnectionPool, PostRequest

log = logging.getLogger(__name__)

# Timeouts in seconds for opening a connection, and for a post in addition to its transfer time.
CONNECT_TIMEOUT_S = 5.0
POST_TIMEOUT_S = 30.0
# Bytes per second of the slowest supported link; large posts get more time accordingly.
MIN_BYTES_PER_S = 100_000
# If this many seconds pass between two readings of the clock, this process was frozen (by
# FlashBoot). The clock is read at least every ``TICK_S``.
FROZEN_S = 5.0
TICK_S = 1.0
# Seconds of consecutive failures before they are logged; single failures are not logged.
OUTAGE_S = 1.0
# Statuses below 500 after which the same request may succeed.
RETRYABLE_STATUSES = (408, 429)
# Statuses of gateways that forwarded a request and got no response.
GATEWAY_TIMEOUTS = (504, 520, 524)
# Statuses from this one on are failures. Redirects are among them, since they are never followed.
FIRST_REDIRECT, FIRST_REFUSAL = 300, 400
# Errors of connections that can't be opened or that break.
NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)

_backoff = JitterRetry(start_timeout=0.05, max_timeout=5.0, random_interval_size=0.7)


def backoff_s(failures: int) -> float:
    """Return the seconds to wait after failures: 0.1, doubled up to 5, plus up to 0.5 at random."""
    # Limit the exponent because the library's power of two would overflow.
    return _backoff.get_timeout(min(failures, 10))


class PostNotDelivered(Exception):
    """The platform did not accept a post, or may not have accepted it."""


class PostFailed(PostNotDelivered):
    """A post was not sent, or the response's status means that it had no effect. Retry it."""


class PostUncertain(PostNotDelivered):
    """A post was sent and may have arrived: it got no response, or only a gateway's or a redirect.

    A redirect may be the response to a post that the platform has accepted, as 303 usually is.
    """


class PostRefused(PostNotDelivered):
    """The platform rejected a post and would reject a retry, too."""


@dataclass(frozen=True, slots=True)
class PlatformUrls:
    """URLs of the platform that contain the worker's id and a query string.

    In ``stream`` and ``done``, ``$ID`` is a placeholder for the job's id.
    """

    take: str
    stream: str
    done: str

    def take_jobs_url(self, max_jobs: int, *, is_busy: bool) -> str:
        url = self.take
        if max_jobs > 1:
            url = f"{url.replace('/job-take/', '/job-take-batch/')}&batch_size={max_jobs}"
        return f"{url}&job_in_progress={int(is_busy)}"

    @property
    def stopped_jobs_url(self) -> str | None:
        """The URL that lists cancelled jobs; None if the platform has no such route."""
        stop_url = self.take.replace("/job-take/", "/job-stop/")
        return None if stop_url == self.take else stop_url


class PostRequests:
    """The posts to the platform's URLs, with the headers of a session."""

    def __init__(self, urls: PlatformUrls, session: ClientSession) -> None:
        headers = session.headers.copy()
        headers["charset"] = "utf-8"
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        headers["X-Request-ID"] = JOB_ID
        # As in the SDK, isStream is true only for the result of a job with chunks.
        self.chunk = PostRequest(f"{urls.stream}&isStream=false", headers)
        self.result_after_chunks = PostRequest(f"{urls.done}&isStream=true", headers)
        self.result = PostRequest(f"{urls.done}&isStream=false", headers)


class PlatformClient:
    """An HTTP client for the platform. Enter its context on the event loop that uses it."""

    def __init__(self, urls: PlatformUrls, create_session: Callable[[], ClientSession]) -> None:
        """Initialize the client; ``create_session`` opens sessions with the platform's API key."""
        self.urls = urls
        # Callbacks that hang up waiting requests after this process was frozen.
        self.on_thaw: list[Callable[[], object]] = []
        self._create_session = create_session
        self._last_tick_at = time.time()
        self._failing_since: float | None = None
        self._is_outage_logged = False
        self._closing_sessions: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._session = self._create_session()
        self._connections = ConnectionPool()
        self.posts = PostRequests(self.urls, self._session)
        self._last_tick_at = time.time()
        self._clock_task = asyncio.create_task(self._watch_clock())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._clock_task.cancel()
        for task in self._closing_sessions:
            task.cancel()
        await asyncio.gather(*self._closing_sessions, return_exceptions=True)
        await self._session.close()
        self._connections.close_idle()

    @property
    def session(self) -> ClientSession:
        """The session for the next request; a new session if this process was frozen."""
        self._replace_session_after_thaw()
        return self._session

    async def post(self, post: PostRequest, job_id: str, content: bytes) -> None:
        """Post JSON once; raise a ``PostNotDelivered`` unless it has surely been accepted."""
        self._replace_session_after_thaw()
        try:
            connection = await self._connections.acquire(post.origin, CONNECT_TIMEOUT_S)
        except NETWORK_ERRORS as error:
            self.record_failure(error)
            raise PostFailed(repr(error)) from error
        try:
            timeout_s = POST_TIMEOUT_S + len(content) / MIN_BYTES_PER_S
            status = await connection.send(post.encode(job_id, content), timeout_s)
        except NETWORK_ERRORS as error:
            self.record_failure(error)
            raise PostUncertain(repr(error)) from error
        finally:
            self._connections.release(post.origin, connection)
        if status < FIRST_REDIRECT:
            self.record_success()
            return
        failure = f"status {status}"
        if FIRST_REFUSAL <= status < 500 and status not in RETRYABLE_STATUSES:
            raise PostRefused(failure)
        self.record_failure(failure)
        is_uncertain = status < FIRST_REFUSAL or status in GATEWAY_TIMEOUTS
        raise (PostUncertain if is_uncertain else PostFailed)(failure)

    async def post_progress(self, job: dict[str, Any], progress: Any) -> None:
        """Post a job's progress without a retry."""
        content = json.dumps({"status": "IN_PROGRESS", "output": progress}).encode()
        await self.post(self.posts.result, job["id"], content)

    def record_failure(self, error: object) -> None:
        """Record a failed request; log an outage once requests have failed for ``OUTAGE_S``."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif not self._is_outage_logged and now - self._failing_since > OUTAGE_S:
            self._is_outage_logged = True
            log.warning("calls to the platform fail (%s); retrying", error)

    def record_success(self) -> None:
        if self._failing_since is not None and self._is_outage_logged:
            seconds = time.monotonic() - self._failing_since
            log.info("calls to the platform succeed again, after %.1f s", seconds)
        self._failing_since, self._is_outage_logged = None, False

    async def _watch_clock(self) -> None:
        while True:
            self._replace_session_after_thaw()
            await asyncio.sleep(TICK_S)

    def _replace_session_after_thaw(self) -> None:
        """After a freeze, which breaks connections, replace the session and call ``on_thaw``."""
        # Read the time of day because monotonic clocks may stand still while the process is frozen.
        now, last_read_at = time.time(), self._last_tick_at
        self._last_tick_at = now
        if now - last_read_at < FROZEN_S:
            return
        log.info("thawed after %.0f s", now - last_read_at)
        old, self._session = self._session, self._create_session()
        self._connections.close_idle()
        close_task = asyncio.create_task(_close_session_later(old))
        self._closing_sessions.add(close_task)
        close_task.add_done_callback(self._closing_sessions.discard)
        for callback in self.on_thaw:
            callback()


async def _close_session_later(session: ClientSession) -> None:
    """Close a session after a delay in which its last response can be read, or when cancelled."""
    try:
        await asyncio.sleep(10 * POST_TIMEOUT_S)
    finally:
        await session.close()
