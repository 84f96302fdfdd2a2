"""One call of the platform: its key, time-outs, retries, and errors in words."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from llm_worker_client.deploy.errors import PlanError, Problem, Unreachable
from llm_worker_client.deploy.secrets import Secrets

# Seconds until a connection stands, and until an answer comes.
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
TRIES = 5
# Seconds that are waited for one further try, at most.
PATIENCE_S = 60.0

_REPEATABLE = frozenset({"GET", "DELETE"})
# The characters that a header can carry.
_KEY = re.compile(r"[!-~]+")
_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True)
class Addresses:
    """Where the platform is: its REST API, and the queues of its endpoints."""

    api: str = "https://api.runpod.io/v2"
    queue: str = "https://api.runpod.ai/v2"

    def __post_init__(self) -> None:
        for address in (self.api, self.queue):
            try:
                url = httpx2.URL(address)
            except httpx2.InvalidURL:
                url = httpx2.URL()
            if not url.host:
                raise PlanError([f"{address}: no address"])
            if url.scheme != "https" and url.host not in _LOCAL:
                raise PlanError([f"{address}: the account key is sent over https only"])


class Calls:
    """Calls with the account key, which no other host gets: redirects are not followed.

    Args:
        key: the account's.
        sleep: waits so many seconds.
        timeout: of one try.

    Raises:
        PlanError: no key looks like that.
    """

    def __init__(
        self,
        key: str,
        sleep: Callable[[float], None] = time.sleep,
        timeout: httpx2.Timeout = TIMEOUT,
    ) -> None:
        key = key.strip()
        if not _KEY.fullmatch(key):
            raise PlanError(["the account key holds characters that no key has: copy it again"])
        self.sleep = sleep
        self._secrets = Secrets([key])
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=timeout,
        )

    def close(self) -> None:
        self._http.close()

    def send(
        self, verb: str, url: str, body: object = None, *, repeatable: bool | None = None
    ) -> dict[str, Any]:
        """Send a request and return the object in its answer, an empty one if there is none.

        Args:
            verb: a GET or a DELETE is tried again where the platform is busy or unreachable.
            url: the whole address.
            body: sent as JSON, if it is not None.
            repeatable: whether another verb may be tried again, too.

        Raises:
            Problem: the platform refuses it.
            Unreachable: there was no answer, or none that could be read.
        """
        tries = TRIES if repeatable or (repeatable is None and verb in _REPEATABLE) else 1
        for number in range(1, tries):
            try:
                return self._once(verb, url, body)
            except (Problem, Unreachable) as failed:
                pause = _pause(failed, number)
                if pause is None:
                    raise
                self.sleep(pause)
        return self._once(verb, url, body)

    def _once(self, verb: str, url: str, body: object) -> dict[str, Any]:
        call = f"{verb} {urlsplit(url).path}"
        try:
            answer = self._http.request(verb, url, json=body)
        except httpx2.HTTPError as why:
            raise _unreachable(call, why) from None
        if not answer.is_success:
            raise self._problem(call, answer)
        try:
            content = answer.json() if answer.content else {}
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise Unreachable(f"{call}: the answer is no JSON object")
        return content

    @contextmanager
    def stream(
        self, url: str, query: dict[str, str], headers: dict[str, str], idle_s: float
    ) -> Iterator[Iterator[str]]:
        """Open a stream, and yield its lines; it ends when nothing has come for ``idle_s``.

        Raises:
            Problem: the platform refuses it.
            Unreachable: it broke off.
        """
        call = f"GET {urlsplit(url).path}"
        timeout = httpx2.Timeout(idle_s, connect=10.0)
        try:
            with self._http.stream(
                "GET", url, params=query, headers=headers, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._problem(call, answer)
                yield _until_idle(answer.iter_lines(), idle_s)
        except httpx2.HTTPError as why:
            raise _unreachable(call, why) from None

    def _problem(self, call: str, answer: httpx2.Response) -> Problem:
        try:
            # Whatever the answer quotes, the key goes into no message.
            body = json.loads(self._secrets.masked(answer.text))
        except ValueError:
            body = None
        after = answer.headers.get("retry-after", "")
        return Problem(call, answer.status_code, body, float(after) if after.isdecimal() else None)


def _until_idle(lines: Iterator[str], idle_s: float) -> Iterator[str]:
    last = time.monotonic()
    with suppress(httpx2.ReadTimeout):
        for line in lines:
            now = time.monotonic()
            # A comment keeps the connection alive, but tells nothing.
            if line and not line.startswith(":"):
                last = now
            elif now - last > idle_s:
                return
            yield line


def _unreachable(call: str, why: httpx2.HTTPError) -> Unreachable:
    kind = "no answer in time" if isinstance(why, httpx2.TimeoutException) else type(why).__name__
    return Unreachable(f"{call}: {kind}")


def _pause(failed: Problem | Unreachable, number: int) -> float | None:
    """Return the seconds until another try, None if none would help."""
    grown: float = 0.5 * 2**number * random.uniform(0.5, 1.0)
    if isinstance(failed, Unreachable):
        return grown
    if failed.status != 429 and failed.status < 500:
        return None
    pause = grown if failed.retry_after_s is None else failed.retry_after_s
    return pause if pause <= PATIENCE_S else None
