"""How requests reach the platform, when, and what its answers are: over httpx2's transports."""

import threading
import time
import urllib.request
from collections.abc import Mapping

import httpx2

from llm_worker_client import account
from llm_worker_client.steps import Ask, Reply, Unreachable

# Seconds over which the platform counts requests.
WINDOW_S = 10.0
# Requests of an endpoint in that time: callers wait instead of being refused.
DOCUMENTED: Mapping[str, int] = {
    "run": 1000,
    "runsync": 2000,
    "stream": 2000,
    "status": 2000,
    "cancel": 100,
}
# Of those at once; what the platform takes of the slowest of them.
AT_ONCE = 400
# Seconds to connect in.
CONNECT_S = 10.0
# Seconds that an idle connection is kept: polls are seldom further apart.
KEPT_S = 60.0
LIMITS = httpx2.Limits(
    max_connections=AT_ONCE, max_keepalive_connections=50, keepalive_expiry=KEPT_S
)
# Before a request is on its way.
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Wire:
    """How requests reach an endpoint: its address, the account's key, the environment's proxy.

    They go to httpx2's transports, without what its clients do around them (cookies, redirects),
    which takes as long again.
    """

    def __init__(self, id: str, api_key: str | None, base_url: str | None) -> None:
        self._url = f"{(base_url or account.base_url()).rstrip('/')}/{id}"
        # The key is nowhere else: these hide it where they are shown.
        self._headers = httpx2.Headers(
            {
                "Authorization": f"Bearer {api_key or account.api_key()}",
                "Content-Type": "application/json",
                "User-Agent": "llm-worker-client",
            }
        )
        url = httpx2.URL(self._url)
        bypassed = urllib.request.proxy_bypass(url.host)
        proxies = {} if bypassed else urllib.request.getproxies()
        self.proxy = proxies.get(url.scheme) or proxies.get("all")

    def request(self, ask: Ask) -> httpx2.Request:
        connect_s = min(CONNECT_S, ask.timeout_s)
        timeout = httpx2.Timeout(ask.timeout_s, connect=connect_s)
        return httpx2.Request(
            ask.method,
            self._url + ask.path,
            headers=self._headers,
            content=ask.content,
            extensions={"timeout": timeout.as_dict()},
        )


def reply(response: httpx2.Response) -> Reply:
    return Reply(response.status_code, response.content, dict(response.headers))


def unreachable(error: httpx2.TransportError) -> Unreachable:
    return Unreachable(str(error) or type(error).__name__, sent=not isinstance(error, _UNSENT))


class Rates:
    """Says how long each request has to wait; threads may share it.

    Args:
        limits: requests of each operation in ten seconds; an operation without one never waits.
    """

    def __init__(self, limits: Mapping[str, int] = DOCUMENTED) -> None:
        self._limits = limits
        self._due: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait(self, operation: str) -> float:
        """Count a request; return the seconds until it may be sent."""
        if operation not in self._limits:
            return 0.0
        apart = WINDOW_S / self._limits[operation]
        now = time.monotonic()
        with self._lock:
            # So many may come at once that a second's worth is saved up.
            due = max(self._due.get(operation, 0.0), now - 1.0) + apart
            self._due[operation] = due
        return max(0.0, due - now)
