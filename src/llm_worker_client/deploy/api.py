"""The platform's endpoints: its REST API, version 2, and the queue of an endpoint."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from llm_worker_client import account
from llm_worker_client.deploy.errors import (
    ExistsError,
    NoAnswer,
    NoEndpoint,
    PlanError,
    Problem,
)
from llm_worker_client.deploy.settings import Secrets

# Seconds until a connection stands, and until an answer comes.
CONNECT_S = 10.0
TIMEOUT_S = 30.0
TRIES = 5
# Seconds that are waited for one further try, at most.
PATIENCE_S = 60.0

# The REST API; `account.PLATFORM` has the queues.
API_URL = "https://api.runpod.io/v2"

_REPEATABLE = frozenset({"GET", "DELETE"})
# The characters that a header can carry.
_KEY = re.compile(r"[!-~]+")
_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})
# What the platform adds to the name of an endpoint with FlashBoot where it is not by this API.
_MARK = " -fb"

Body = dict[str, Any]


class Api:
    """Endpoints of an account. No other host gets its key: redirects are not followed.

    Args:
        key: the account's.
        api_url: of the REST API.
        queue_url: of the queues.
        sleep: waits so many seconds.
        timeout_s: until an answer comes.

    Raises:
        PlanError: no key or no address looks like that.
    """

    def __init__(
        self,
        key: str,
        api_url: str = API_URL,
        queue_url: str = account.PLATFORM,
        sleep: Callable[[float], None] = time.sleep,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        key = key.strip()
        if not _KEY.fullmatch(key):
            raise PlanError(["the account key holds characters that no key has: copy it again"])
        self.sleep = sleep
        self._api_url, self._queue_url = _checked(api_url), _checked(queue_url)
        self._secrets = Secrets()
        self._secrets.hide([key])
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S),
        )

    def close(self) -> None:
        self._http.close()

    # The account's endpoints.

    def find(self, name: str) -> Body | None:
        """Return the endpoint of that name, None if there is none.

        Raises:
            ExistsError: there are several, which a name does not distinguish.
        """
        return _named(name, self._all())

    def get(self, name: str) -> Body:
        """Return the endpoint of that name or id.

        Raises:
            NoEndpoint: there is none.
            ExistsError: there are several of that name.
        """
        listed = self._all()
        by_id = next((one for one in listed if one["id"] == name), None)
        if (found := by_id or _named(name, listed)) is None:
            names = ", ".join(sorted(one["name"] for one in listed)) or "none"
            raise NoEndpoint(f"there is no endpoint named {name}; those of the account: {names}")
        return found

    def create(self, body: Body) -> Body:
        """Create an endpoint; where no answer comes, look whether it is there all the same."""
        try:
            return self._send("POST", self.url(), body)
        except NoAnswer:
            if (found := self.find(body["name"])) is None:
                raise
            return found

    def change(self, identity: str, body: Body, *, repeatable: bool = False) -> None:
        self._send("PATCH", self.url(identity), body, repeatable=repeatable)

    def delete(self, identity: str) -> None:
        """Delete an endpoint; one that is gone counts as deleted."""
        try:
            self._send("DELETE", self.url(identity))
        except Problem as problem:
            if problem.status != 404:
                raise

    def workers(self, identity: str) -> Body:
        return self._send("GET", self.url(identity, "workers"))

    def releases(self, identity: str) -> Body:
        return self._send("GET", self.url(identity, "releases"))

    def volumes(self) -> list[Body]:
        """Return the account's network volumes."""
        listed: list[Body] = self._send("GET", f"{self._api_url}/network-volumes")["networkVolumes"]
        return listed

    @contextmanager
    def log(
        self, identity: str, worker: str, query: dict[str, str], last: str, idle_s: float
    ) -> Iterator[Iterator[str]]:
        """Open a worker's log as a stream of events; yield its lines, until none comes for a time.

        Args:
            identity: of the endpoint.
            worker: its id.
            query: ``tail``, ``since``, ``source``, as the platform has them.
            last: the id of the last event that was seen.
            idle_s: seconds without a line after which the log has ended.
        """
        url = self.url(identity, "workers", worker, "logs")
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        timeout = httpx2.Timeout(idle_s, connect=CONNECT_S)
        call = f"GET {urlsplit(url).path}"
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

    # An endpoint's queue.

    def run(self, identity: str, job: Body) -> str:
        """Give the endpoint a job, and return the job's id."""
        # Twice at worst, where an answer is lost.
        url = _joined(self._queue_url, identity, "run")
        return str(self._send("POST", url, {"input": job}, repeatable=True)["id"])

    def job(self, identity: str, job: str) -> Body:
        return self._send("GET", _joined(self._queue_url, identity, "status", job))

    def cancel(self, identity: str, job: str) -> None:
        self._send("POST", _joined(self._queue_url, identity, "cancel", job), repeatable=True)

    def health(self, identity: str) -> Body:
        return self._send("GET", _joined(self._queue_url, identity, "health"))

    def openai_url(self, identity: str) -> str:
        """Return the base address of OpenAI's API."""
        return _joined(self._queue_url, identity, "openai", "v1")

    def url(self, *parts: str) -> str:
        """Return the address of all endpoints, of one, or of what is below it."""
        return _joined(self._api_url, "serverless", *parts)

    def _all(self) -> list[Body]:
        listed: list[Body] = self._send("GET", self.url())["endpoints"]
        return listed

    def _send(self, verb: str, url: str, body: object = None, *, repeatable: bool = False) -> Body:
        """Send a request and return the object in its answer, an empty one if there is none.

        A GET, a DELETE and what is repeatable are tried again where the platform is busy or
        unreachable.

        Raises:
            Problem: the platform refuses it.
            NoAnswer: there was no answer, or none that could be read.
        """
        tries = TRIES if repeatable or verb in _REPEATABLE else 1
        for number in range(1, tries):
            try:
                return self._once(verb, url, body)
            except (Problem, NoAnswer) as failed:
                if (pause := _pause(failed, number)) is None:
                    raise
                self.sleep(pause)
        return self._once(verb, url, body)

    def _once(self, verb: str, url: str, body: object) -> Body:
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
            raise NoAnswer(f"{call}: the answer is no JSON object")
        return content

    def _problem(self, call: str, answer: httpx2.Response) -> Problem:
        try:
            # Whatever the answer quotes, the key goes into no message.
            body = json.loads(self._secrets.masked(answer.text))
        except ValueError:
            body = None
        after = answer.headers.get("retry-after", "")
        return Problem(call, answer.status_code, body, float(after) if after.isdecimal() else None)


def _checked(address: str) -> str:
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL:
        url = httpx2.URL()
    if not url.host:
        raise PlanError([f"{address}: no address"])
    if url.scheme != "https" and url.host not in _LOCAL:
        raise PlanError([f"{address}: the account key is sent over https only"])
    return address.rstrip("/")


def bare_name(name: str) -> str:
    return name.removesuffix(_MARK)


def _named(name: str, listed: list[Body]) -> Body | None:
    found = [one for one in listed if bare_name(one["name"]) == bare_name(name)]
    if len(found) > 1:
        ids = ", ".join(sorted(one["id"] for one in found))
        raise ExistsError(
            f"{len(found)} endpoints are named {name}: {ids}; "
            "rename one in the console, or delete it by its id: deploy delete <id>"
        )
    return found[0] if found else None


def _joined(base: str, *parts: str) -> str:
    return "/".join([base, *(quote(part, safe="") for part in parts)])


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


def _unreachable(call: str, why: httpx2.HTTPError) -> NoAnswer:
    kind = "no answer in time" if isinstance(why, httpx2.TimeoutException) else type(why).__name__
    return NoAnswer(f"{call}: {kind}")


def _pause(failed: Problem | NoAnswer, number: int) -> float | None:
    """Return the seconds until another try, None if none would help."""
    grown: float = 0.5 * 2**number * random.uniform(0.5, 1.0)
    if isinstance(failed, NoAnswer):
        return grown
    if failed.status != 429 and failed.status < 500:
        return None
    pause = grown if failed.retry_after_s is None else failed.retry_after_s
    return pause if pause <= PATIENCE_S else None
