"""Endpoints as the platform manages them: defaults, partial updates, workers, jobs and logs."""

import itertools
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]

DEFAULTS: Body = {
    "args": "",
    "disk": 20,
    "ports": [],
    "env": {},
    "registry": None,
    "dataCenterIds": [],
    "networkVolumes": [],
    "timeout": 300000,
    "flashboot": "OFF",
    "createdAt": "2026-06-01T12:00:00Z",
}


class Refusal(Exception):
    """A refused request: the detail, and the errors."""

    def __init__(self, status: int, detail: str, errors: list[str] | None = None) -> None:
        super().__init__(detail, errors)
        self.status = status


@dataclass
class Endpoints:
    """The resources of an account.

    Attributes:
        endpoints: Endpoints by their ids.
        workers: Workers of all endpoints. They start with the first job, and are removed when the
            maximum number of workers becomes 0.
        polls_until_done: Number of status requests until a job has ended.
        result: Status object of an ended job.
        log: Log of every worker.
        pings: Whether comments keep streams of the log open.
        volumes: Network volumes.
        jobs: Inputs of jobs by their ids, without cancelled jobs.
    """

    endpoints: dict[str, Body] = field(default_factory=dict)
    workers: list[Body] = field(default_factory=list)
    polls_until_done: int = 2
    result: Body = field(
        default_factory=lambda: {"status": "COMPLETED", "workerId": "w1", "output": {"id": "1"}}
    )
    log: list[dict[str, str]] = field(default_factory=list)
    pings: bool = False
    volumes: list[Body] = field(default_factory=list)
    jobs: dict[str, Body] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1))
    poll_counts: dict[str, int] = field(default_factory=dict)

    def add(self, **changes: Any) -> Body:
        """Add an endpoint as if it had been created in the console."""
        gpu = {"pools": ["ADA_24"], "count": 1, "allowedCudaVersions": [], "minCudaVersion": None}
        body = {"type": "QUEUE", "image": "x/y:1", "gpu": gpu, "workers": {"min": 0, "max": 3}}
        body["scaling"] = {"type": "QUEUE_DELAY", "queueDelay": 4}
        return self._store({**body, **changes})

    def rest(
        self, verb: str, path: str, body: Body | None, last_event_id: str | None
    ) -> tuple[int, Any]:
        """Execute a valid request of the REST API; return its status and response."""
        if path == "/v2/network-volumes":
            return 200, {"networkVolumes": self.volumes}
        identity, *below = [*path.removeprefix("/v2/serverless").split("/")[1:], ""][:3]
        if not identity:
            return (201, self._create(body)) if body else (200, self._list())
        if identity not in self.endpoints:
            raise Refusal(404, "resource not found")
        if below[0] == "workers":
            following = path.endswith("/logs")
            return 200, self._log(last_event_id) if following else self._workers()
        if below[0] == "releases":
            return 200, self._releases()
        if verb == "DELETE":
            del self.endpoints[identity]
            return 204, None
        if body is not None:
            self._change(self.endpoints[identity], body)
        return 200, self.endpoints[identity]

    def queue(self, verb: str, path: str, body: Body | None) -> Body:
        """Execute a request of an endpoint's queue."""
        identity, action, *job = path.split("/")
        if identity not in self.endpoints:
            raise Refusal(404, "no such endpoint")
        if (verb, action) == ("POST", "run") and body:
            return self._run(identity, body["input"])
        if (verb, action) == ("GET", "status"):
            return {"id": job[0], **self._status(job[0])}
        if (verb, action) == ("POST", "cancel"):
            del self.jobs[job[0]]
            return {"id": job[0], "status": "CANCELLED"}
        return {"jobs": {"inQueue": len(self.jobs), "completed": 0}, "workers": {}}

    def _list(self) -> Body:
        return {"endpoints": list(self.endpoints.values())}

    def _create(self, body: Body) -> Body:
        if ("gpu" in body) == ("cpu" in body):
            raise Refusal(400, "exactly one of gpu and cpu")
        _check(body)
        gpu = {"count": 1, "allowedCudaVersions": [], "minCudaVersion": None, **body["gpu"]}
        return self._store({**body, "gpu": gpu})

    def _store(self, body: Body) -> Body:
        identity = f"ep{next(self._ids)}"
        base = f"https://api.runpod.ai/v2/{identity}/"
        paths = {"run": "run", "runSync": "runsync", "purgeQueue": "purge-queue"}
        paths |= {name: f"{name}/{{job_id}}" for name in ("status", "stream", "cancel", "retry")}
        urls = {name: base + path for name, path in {**paths, "health": "health"}.items()}
        endpoint = {**DEFAULTS, **body, "id": identity, "requestUrls": urls}
        endpoint["workers"] = _workers_of(endpoint)
        if endpoint["gpu"] and not endpoint["gpu"].get("excludedTypes", True):
            del endpoint["gpu"]["excludedTypes"]
        self.endpoints[identity] = endpoint
        return endpoint

    def _change(self, endpoint: Body, body: Body) -> None:
        after = {**endpoint, **body}
        for key in ("gpu", "workers"):
            after[key] = {**endpoint[key], **body.get(key, {})}
        if "pools" in body.get("gpu", {}):
            after["gpu"]["excludedTypes"] = body["gpu"].get("excludedTypes", [])
        after["gpu"]["minCudaVersion"] = after["gpu"]["minCudaVersion"] or None
        if "scaling" in body and "idleTimeout" not in body.get("workers", {}):
            after["workers"].pop("idleTimeout", None)
        _check(after)
        after["workers"] = _workers_of(after)
        if not after["gpu"].get("excludedTypes", True):
            del after["gpu"]["excludedTypes"]
        endpoint.update(after)
        if not after["workers"]["max"]:
            self.workers.clear()

    def _run(self, identity: str, job: Body) -> Body:
        name = f"job{next(self._ids)}"
        self.jobs[name] = job
        if not self.workers and self.endpoints[identity]["workers"]["max"]:
            self.workers.append(worker("w1", "INITIALIZING"))
        return {"id": name, "status": "IN_QUEUE"}

    def _status(self, job: str) -> Body:
        self.poll_counts[job] = self.poll_counts.get(job, 0) + 1
        if self.poll_counts[job] <= self.polls_until_done:
            return {"status": "IN_QUEUE"}
        self.jobs.pop(job, None)
        for one in self.workers:
            one["status"] = "IDLE"
        return self.result

    def _workers(self) -> Body:
        states = ("running", "idle", "initializing", "throttled", "unhealthy")
        counts = {
            state: sum(one["status"] == state.upper() for one in self.workers) for state in states
        }
        summary = {**counts, "total": len(self.workers)}
        # Workers of an earlier version exit by themselves.
        listed = [dict(one) for one in self.workers]
        self.workers[:] = [one for one in self.workers if not one["isStale"]]
        return {"workers": listed, "summary": summary, "endpointVersion": 2}

    def _log(self, last_event_id: str | None) -> list[dict[str, str]]:
        """Return the last line that was read and two more; the worker exits after its log."""
        if last_event_id is None:
            return self.log[:2]
        later = [line for line in self.log if line["ts"] >= last_event_id][:3]
        if len(later) == 1:
            raise Refusal(404, "the worker is gone")
        return later

    def _releases(self) -> Body:
        total = len(self.workers)
        rollout = {"inProgress": False, "workersOnLatest": total, "workersTotal": total}
        return {"releases": [], "rollout": rollout | {"percentOnLatest": 100 if total else 0}}


def volume(identity: str, center: str) -> Body:
    body = {"id": identity, "name": f"my {identity}", "dataCenter": center}
    return body | {"size": 100, "type": "STANDARD"}


def worker(identity: str, status: str, *, stale: bool = False) -> Body:
    return {"id": identity, "status": status, "gpuCount": 1, "isStale": stale}


def _check(body: Body) -> None:
    """Refuse violations of rules that the document states in sentences instead of types."""
    by_requests = body["scaling"]["type"] == "REQUEST_COUNT"
    if by_requests and "idleTimeout" in body.get("workers", {}):
        raise Refusal(400, "idleTimeout does not apply to queues that scale by requestCount")
    if body["gpu"].get("minCudaVersion") and body["gpu"].get("allowedCudaVersions"):
        raise Refusal(400, "minCudaVersion and allowedCudaVersions exclude each other")


def _workers_of(body: Body) -> Body:
    workers = {"min": 0, "max": 3, "idleTimeout": 10, **body.get("workers", {})}
    if body["scaling"]["type"] == "REQUEST_COUNT":
        del workers["idleTimeout"]
    return workers
