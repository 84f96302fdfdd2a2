"""Builds requests to the platform for httpx2's transports; limits their rate and large replies."""

import asyncio
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, aclosing

import httpx2

from llm_worker_client import account
from llm_worker_client.mapping.responses import Refusal
from llm_worker_client.steps import PlatformReply, PlatformRequest, PlatformUnreachable

# Seconds of the window in which the platform counts requests.
WINDOW_S = 10.0
# Maximum requests per operation in WINDOW_S. The platform would refuse further ones: they wait.
RATE_LIMITS: Mapping[str, int] = {
    "run": 1000,
    "runsync": 2000,
    "stream": 2000,
    "status": 2000,
    "cancel": 100,
}
# Maximum concurrent connections: the platform's limit of requests for its slowest operations.
MAX_CONNECTIONS = 400
# Connect timeout in seconds.
CONNECT_TIMEOUT_S = 10.0
# Seconds until an idle connection is closed; polls are usually more frequent.
KEEPALIVE_S = 60.0
CONNECTION_LIMITS = httpx2.Limits(
    max_connections=MAX_CONNECTIONS, max_keepalive_connections=50, keepalive_expiry=KEEPALIVE_S
)
# Bytes above which a reply counts as large; the platform's results have at most 20 MB.
LARGE_REPLY_BYTES = 262_144
# Maximum number of large replies in memory, and of further ones that wait unread for their turn.
MAX_LARGE_REPLIES, MAX_WAITING_REPLIES = 8, 100
# Maximum seconds of this wait.
LARGE_REPLY_WAIT_S = 60.0
# Errors that occur before a request is sent.
_CONNECT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class RequestBuilder:
    """Builds requests to an endpoint with the account's key, and finds the environment's proxy.

    The requests are for httpx2's transports; httpx2's clients, which add cookies, redirects and
    other features, would double the time of a request.
    """

    def __init__(self, id: str, api_key: str | None, base_url: str | None) -> None:
        self._url = f"{(base_url or account.platform_base_url()).rstrip('/')}/{id}"
        # The key is only in these headers because their repr hides it.
        self._headers = httpx2.Headers(
            {
                "Authorization": f"Bearer {api_key or account.api_key()}",
                "Content-Type": "application/json",
                "User-Agent": "llm-worker-client",
            }
        )
        url = httpx2.URL(self._url)
        bypasses_proxy = urllib.request.proxy_bypass(url.host)
        proxies = {} if bypasses_proxy else urllib.request.getproxies()
        self.proxy = proxies.get(url.scheme) or proxies.get("all")

    def build(self, request: PlatformRequest) -> httpx2.Request:
        connect_s = min(CONNECT_TIMEOUT_S, request.timeout_s)
        timeout = httpx2.Timeout(request.timeout_s, connect=connect_s)
        return httpx2.Request(
            request.method,
            self._url + request.path,
            headers=self._headers,
            content=request.content,
            extensions={"timeout": timeout.as_dict()},
        )


def to_platform_unreachable(error: httpx2.TransportError) -> PlatformUnreachable:
    may_have_arrived = not isinstance(error, _CONNECT_ERRORS)
    return PlatformUnreachable(
        str(error) or type(error).__name__, may_have_arrived=may_have_arrived
    )


class RateLimiter:
    """Limits the rate of requests, by operation; thread-safe."""

    def __init__(self, limits: Mapping[str, int] = RATE_LIMITS) -> None:
        self._limits = limits
        self._next_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def reserve_send_time(self, operation: str) -> float:
        """Reserve the next free time for a request; return the seconds until then."""
        if operation not in self._limits:
            return 0.0
        interval_s = WINDOW_S / self._limits[operation]
        now = time.monotonic()
        with self._lock:
            # Unused capacity is saved for up to one second, which allows short bursts.
            send_at = max(self._next_at.get(operation, 0.0), now - 1.0) + interval_s
            self._next_at[operation] = send_at
        return max(0.0, send_at - now)


class LargeReplies:
    """Limits the number of large replies in memory, on one event loop."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_LARGE_REPLIES)
        self._waiting = 0

    async def acquire_slot(self, *, may_refuse: bool) -> None:
        """Wait until another large reply may be read; refuse long waits if ``may_refuse``."""
        if not may_refuse:
            await self._slots.acquire()
            return
        if self._waiting < MAX_WAITING_REPLIES:
            self._waiting += 1
            try:
                async with asyncio.timeout(LARGE_REPLY_WAIT_S):
                    await self._slots.acquire()
                    return
            except TimeoutError:
                pass
            finally:
                self._waiting -= 1
        message = "The proxy sends too many large answers at the moment: send the request again."
        raise Refusal(503, message, None, 1.0)

    def release_slot(self) -> None:
        self._slots.release()


class ReplyReader:
    """Reads the replies to the requests of one answer, which has one of them in memory at a time.

    ``may_refuse`` says whether the answer can still be an error.
    """

    def __init__(self, large_replies: LargeReplies | None = None) -> None:
        self._large_replies = large_replies
        self._slot = ExitStack()
        self._is_closed = False
        self.may_refuse = True

    async def read(self, response: httpx2.Response) -> PlatformReply:
        """Read a reply; wait before the rest of a large one, which counts until ``forget``."""
        parts, size = list[bytes](), 0
        with ExitStack() as slot:
            async with aclosing(response):
                async for part in response.aiter_bytes():
                    is_large, size = size > LARGE_REPLY_BYTES, size + len(part)
                    if self._large_replies and size > LARGE_REPLY_BYTES and not is_large:
                        await self._large_replies.acquire_slot(may_refuse=self.may_refuse)
                        slot.callback(self._large_replies.release_slot)
                    parts.append(part)
            if not self._is_closed:
                self._slot = slot.pop_all()
        return PlatformReply(response.status_code, b"".join(parts), dict(response.headers))

    def forget(self) -> None:
        """Let another answer read a large reply."""
        self._slot.close()

    def close(self) -> None:
        self._is_closed = True
        self.forget()
