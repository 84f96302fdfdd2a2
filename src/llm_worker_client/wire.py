"""Builds requests to the platform for httpx2's transports and limits their rate."""

import threading
import time
import urllib.request
from collections.abc import Mapping

import httpx2

from llm_worker_client import account
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


def to_platform_reply(response: httpx2.Response) -> PlatformReply:
    return PlatformReply(response.status_code, response.content, dict(response.headers))


def to_platform_unreachable(error: httpx2.TransportError) -> PlatformUnreachable:
    may_have_arrived = not isinstance(error, _CONNECT_ERRORS)
    return PlatformUnreachable(
        str(error) or type(error).__name__, may_have_arrived=may_have_arrived
    )


class RateLimiter:
    """Limits the rate of requests; thread-safe.

    Args:
        limits: Maximum requests of each operation in ten seconds; other operations are not limited.
    """

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
