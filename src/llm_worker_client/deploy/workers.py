"""The logs and the status of an endpoint's workers."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx2

from llm_worker_client.deploy.api import Api, Json
from llm_worker_client.deploy.errors import ApiError, NoEndpoint, NoResponse, PlanError

# Seconds without a line after which ``follow`` closes a stream, and seconds before the next.
_RECONNECT_AFTER_S = 60.0
_RECONNECT_PAUSE_S = 1.0
# Consecutive streams that break off without a new line, after which ``follow`` raises the error.
_MAX_FAILURES = 5


@dataclass
class WorkerLog:
    """A worker's log; ``query`` has the platform's options ``tail``, ``since`` and ``source``."""

    api: Api
    endpoint_id: str
    worker_id: str
    query: dict[str, str]
    _last_id: str = ""
    # Number of received lines with the last id, a timestamp that several lines may share.
    _seen_count: int = 0
    _failures: int = 0

    def read_until_idle(self, idle_s: float) -> Iterator[str]:
        """Yield new lines until the stream ends or no line has arrived for ``idle_s`` seconds."""
        repeated, repeated_id, event_id = self._seen_count, self._last_id, ""
        stream = self.api.stream_log(
            self.endpoint_id, self.worker_id, self.query, self._last_id, idle_s
        )
        with stream as lines, suppress(httpx2.ReadTimeout):
            last_event_at = time.monotonic()
            for line in lines:
                now = time.monotonic()
                # Comments keep the connection alive.
                if not line or line.startswith(":"):
                    if now - last_event_at > idle_s:
                        return
                    continue
                last_event_at = now
                key, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if key == "id":
                    event_id = value
                if key != "data":
                    continue
                # A reopened stream may begin with lines that were already received.
                if repeated and event_id == repeated_id:
                    repeated -= 1
                    continue
                repeated = 0
                self._seen_count = self._seen_count + 1 if event_id == self._last_id else 1
                self._last_id, self._failures = event_id, 0
                with suppress(ValueError, LookupError, TypeError):
                    value = json.loads(value)["line"]
                yield value

    def follow(self) -> Iterator[str]:
        """Yield lines until the worker no longer exists; reopen the stream when it ends."""
        while True:
            try:
                yield from self.read_until_idle(_RECONNECT_AFTER_S)
            except NoResponse:
                self._failures += 1
                if self._failures == _MAX_FAILURES:
                    raise
            except ApiError as error:
                if self._last_id and error.status == 404:
                    return
                raise
            self.api.sleep(_RECONNECT_PAUSE_S)


def only_worker_id(api: Api, endpoint: Json) -> str:
    workers = api.get_workers(endpoint["id"])["workers"]
    if not workers:
        raise NoEndpoint("no worker is running; the console has the logs of those that have ended")
    if len(workers) > 1:
        names = ", ".join(f"{worker['id']} ({worker['status']})" for worker in workers)
        raise PlanError([f"--worker: which one? {names}"])
    return str(workers[0]["id"])


def get_status(api: Api, endpoint: Json) -> Json:
    """Return an endpoint's identity, image, limits, workers, rollout and, if known, job counts."""
    endpoint_id = endpoint["id"]
    status = {key: endpoint.get(key) for key in ("id", "name", "image")}
    status["bounds"] = {key: endpoint["workers"][key] for key in ("min", "max")}
    workers = api.get_workers(endpoint_id)
    status |= {key: workers[key] for key in ("summary", "workers")}
    status["rollout"] = api.get_releases(endpoint_id).get("rollout") or {}
    # Another service, which learns of a new endpoint a little later, provides the job counts.
    with suppress(ApiError):
        status["jobs"] = api.get_health(endpoint_id).get("jobs") or {}
    return status


def format_status(status: Json) -> Iterator[str]:
    yield f"{status['name']} ({status['id']}): {status['image'] or ''}"
    bounds = status["bounds"]
    yield f"{format_worker_counts(status['summary'])} ({bounds['min']} to {bounds['max']})"
    for worker in status["workers"]:
        parts = [worker["status"], worker.get("gpuTypeId"), worker.get("dataCenterId")]
        parts += ["of an earlier version" if worker["isStale"] else None]
        yield f"  {worker['id']}: " + ", ".join(part for part in parts if part)
    rollout = status["rollout"]
    if rollout.get("inProgress"):
        yield f"roll-out: {rollout['workersOnLatest']} of {rollout['workersTotal']} workers"
    if (jobs := status.get("jobs")) is not None:
        yield f"jobs: {_format_counts(jobs)}"


def format_worker_counts(summary: Mapping[str, int]) -> str:
    counts = {state: count for state, count in summary.items() if state != "total"}
    return f"workers: {_format_counts(counts)}"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"
