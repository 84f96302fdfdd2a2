"""A client for version 2 of the platform's REST API, and for the job queues of endpoints."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx2

from llm_worker_client import account
from llm_worker_client.deploy.errors import (
    ApiError,
    DeployError,
    NoEndpoint,
    NoResponse,
    PlanError,
)
from llm_worker_client.deploy.settings import SecretMasker

# Timeouts for connecting and for a response, in seconds.
CONNECT_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 30.0
MAX_TRIES = 5
# Maximum number of seconds to wait before a retry; a request is not retried after longer ones.
MAX_PAUSE_S = 60.0

# URL of the REST API. The URL of the queues is ``account.PLATFORM_URL``.
API_URL = "https://api.runpod.io/v2"

_RETRIABLE_METHODS = frozenset({"GET", "DELETE"})
# The characters that an HTTP header allows in a key.
_KEY_PATTERN = re.compile(r"[!-~]+")
# Suffix of an endpoint's name if FlashBoot was enabled by other means than this API.
_FLASHBOOT_SUFFIX = " -fb"

Json = dict[str, Any]


class Api:
    """A client for the endpoints of an account and for their jobs.

    The client does not follow redirects, so that no other host receives the account's key.
    """

    def __init__(
        self,
        key: str,
        api_url: str = API_URL,
        queue_url: str = account.PLATFORM_URL,
        sleep: Callable[[float], None] = time.sleep,
        timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> None:
        key = key.strip()
        if not _KEY_PATTERN.fullmatch(key):
            raise PlanError(["the account key contains characters that no key has: copy it again"])
        self.sleep = sleep
        self._api_url, self._queue_url = _validate_url(api_url), _validate_url(queue_url)
        self._secrets = SecretMasker()
        self._secrets.add([key])
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        )

    def close(self) -> None:
        self._http.close()

    # Requests about the account's endpoints.

    def list_endpoints(self) -> list[Json]:
        """Return the account's endpoints, with an empty id or name if the platform sends none."""
        return _read_list(self._send("GET", self.endpoints_url()), "endpoints")

    def find_endpoint_by_name(self, name: str) -> Json | None:
        """Return the endpoint with this name, whatever its FlashBoot suffix, or None."""
        return _find_by_name(name, self.list_endpoints())

    def endpoint_by_name_or_id(self, name: str) -> Json:
        endpoints = self.list_endpoints()
        by_id = next((endpoint for endpoint in endpoints if endpoint["id"] == name), None)
        if (found := by_id or _find_by_name(name, endpoints)) is None:
            names = ", ".join(sorted(one["name"] for one in endpoints if one["name"])) or "none"
            raise NoEndpoint(f"there is no endpoint named {name}; those of the account: {names}")
        return found

    def create_endpoint(self, body: Json) -> Json:
        """Create an endpoint and return it; if no response names it, look for it by its name."""
        try:
            return _check_key(self._send("POST", self.endpoints_url(), body), "id")
        except NoResponse:
            if (found := self.find_endpoint_by_name(body["name"])) is None:
                raise
            return found

    def update_endpoint(self, endpoint_id: str, body: Json, *, can_retry: bool = False) -> None:
        self._send("PATCH", self.endpoints_url(endpoint_id), body, can_retry=can_retry)

    def delete_endpoint(self, endpoint_id: str) -> None:
        """Delete an endpoint; do nothing if it no longer exists."""
        try:
            self._send("DELETE", self.endpoints_url(endpoint_id))
        except ApiError as error:
            if error.status != 404:
                raise

    def get_workers(self, endpoint_id: str) -> Json:
        """Return an endpoint's workers, and their numbers by state as ``summary``."""
        response = self._send("GET", self.endpoints_url(endpoint_id, "workers"))
        defaults = {"status": "", "isStale": False}
        workers = [defaults | worker for worker in _read_list(response, "workers", ("id",))]
        counts, summary = {"total": len(workers), "unhealthy": 0}, response.get("summary")
        counts |= summary if isinstance(summary, dict) else {}
        return {"summary": counts, "workers": workers}

    def get_releases(self, endpoint_id: str) -> Json:
        return self._send("GET", self.endpoints_url(endpoint_id, "releases"))

    def list_volumes(self) -> list[Json]:
        return _read_list(self._send("GET", f"{self._api_url}/network-volumes"), "networkVolumes")

    def get_serverless_billing(self, endpoint_id: str, start: str, end: str) -> Json:
        """Return an endpoint's bills by day, from ``start`` until before ``end`` (RFC 3339)."""
        query = {"startTime": start, "endTime": end, "bucketSize": "day"}
        query["serverlessId"] = endpoint_id
        return self._send("GET", f"{self._api_url}/billing/serverless?{urlencode(query)}")

    @contextmanager
    def stream_log(
        self, endpoint_id: str, worker_id: str, query: dict[str, str], last_id: str, idle_s: float
    ) -> Iterator[Iterator[str]]:
        """Open a worker's log as a stream of events and yield an iterator over its raw lines.

        ``query`` has the platform's options ``tail``, ``since`` and ``source``. ``last_id`` is that
        of the last received event, or empty. Reading raises ``ReadTimeout`` after ``idle_s``
        seconds without any bytes.
        """
        url = self.endpoints_url(endpoint_id, "workers", worker_id, "logs")
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        timeout = httpx2.Timeout(idle_s, connect=CONNECT_TIMEOUT_S)
        request = f"GET {urlsplit(url).path}"
        try:
            with self._http.stream(
                "GET", url, params=query, headers=headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise self._make_api_error(request, response)
                yield response.iter_lines()
        except httpx2.HTTPError as error:
            raise _no_response_error(request, error) from None

    # Requests to an endpoint's queue.

    def submit_job(self, endpoint_id: str, job_input: Json) -> str:
        url = _join_url(self._queue_url, endpoint_id, "run")
        # If only the response is lost, a retry submits the test job twice, which does no harm.
        response = self._send("POST", url, {"input": job_input}, can_retry=True)
        return str(_check_key(response, "id")["id"])

    def get_job(self, endpoint_id: str, job_id: str) -> Json:
        return self._send("GET", _join_url(self._queue_url, endpoint_id, "status", job_id))

    def cancel_job(self, endpoint_id: str, job_id: str) -> None:
        url = _join_url(self._queue_url, endpoint_id, "cancel", job_id)
        self._send("POST", url, can_retry=True)

    def get_health(self, endpoint_id: str) -> Json:
        return self._send("GET", _join_url(self._queue_url, endpoint_id, "health"))

    def openai_url(self, endpoint_id: str) -> str:
        return _join_url(self._queue_url, endpoint_id, "openai", "v1")

    def endpoints_url(self, *parts: str) -> str:
        """Return the URL of all endpoints, or of the endpoint or resource that the parts name."""
        return _join_url(self._api_url, "serverless", *parts)

    def _send(self, method: str, url: str, body: object = None, *, can_retry: bool = False) -> Json:
        """Send a request and return the JSON object of the response; {} if the body is empty.

        Retries GET, DELETE and requests with ``can_retry`` if the platform is busy or unreachable.
        """
        tries = MAX_TRIES if can_retry or method in _RETRIABLE_METHODS else 1
        for try_number in range(1, tries):
            pause_s: float = 0.5 * 2**try_number * random.uniform(0.5, 1.0)
            try:
                return self._send_once(method, url, body)
            except NoResponse:
                pass
            except ApiError as error:
                if error.retry_after_s is not None:
                    pause_s = error.retry_after_s
                if (error.status != 429 and error.status < 500) or pause_s > MAX_PAUSE_S:
                    raise
            self.sleep(pause_s)
        return self._send_once(method, url, body)

    def _send_once(self, method: str, url: str, body: object) -> Json:
        request = f"{method} {urlsplit(url).path}"
        try:
            response = self._http.request(method, url, json=body)
        except httpx2.HTTPError as error:
            raise _no_response_error(request, error) from None
        if not response.is_success:
            raise self._make_api_error(request, response)
        try:
            content = response.json() if response.content else {}
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise NoResponse(f"{request}: the answer is not a JSON object")
        return content

    def _make_api_error(self, request: str, response: httpx2.Response) -> ApiError:
        try:
            # A response may quote the key, which must not appear in a message.
            body = json.loads(self._secrets.mask(response.text))
        except ValueError:
            body = None
        delay = response.headers.get("retry-after", "")
        delay_s = float(delay) if delay.isdecimal() else None
        return ApiError(request, response.status_code, body, delay_s)


def _validate_url(url: str) -> str:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL()
    if not parsed.host:
        raise PlanError([f"{url}: this is not a URL"])
    if parsed.scheme != "https" and parsed.host not in account.LOOPBACK:
        raise PlanError([f"{url}: the account key is sent over https only"])
    return url.rstrip("/")


def strip_flashboot_suffix(name: str) -> str:
    return name.removesuffix(_FLASHBOOT_SUFFIX)


def _find_by_name(name: str, endpoints: list[Json]) -> Json | None:
    name_stem = strip_flashboot_suffix(name)
    matches = [each for each in endpoints if strip_flashboot_suffix(each["name"]) == name_stem]
    if len(matches) > 1:
        ids = ", ".join(sorted(endpoint["id"] for endpoint in matches))
        raise DeployError(
            f"{len(matches)} endpoints are named {name}: {ids}; "
            "rename one in the console, or delete it by its id: deploy delete <id>"
        )
    if matches and not matches[0]["id"]:
        raise NoResponse(f"the platform sends no id of the endpoint {name}")
    return matches[0] if matches else None


def _read_list(response: Json, key: str, names: tuple[str, ...] = ("id", "name")) -> list[Json]:
    """Return a list of objects in a response, each with these values, which may be empty."""
    items = _check_key(response, key)[key]
    objects = [item if isinstance(item, dict) else {} for item in items]
    return [one | {name: str(one.get(name) or "") for name in names} for one in objects]


def _check_key(response: Json, key: str) -> Json:
    """Return a response; raise ``NoResponse`` if its list or its id is missing."""
    if not isinstance(response.get(key), str if key == "id" else list):
        raise NoResponse(f"the answer of the platform has no valid {key}")
    return response


def _join_url(base: str, *parts: str) -> str:
    return "/".join([base, *(quote(part, safe="") for part in parts)])


def _no_response_error(request: str, error: httpx2.HTTPError) -> NoResponse:
    is_timeout = isinstance(error, httpx2.TimeoutException)
    return NoResponse(f"{request}: {'no answer in time' if is_timeout else type(error).__name__}")
