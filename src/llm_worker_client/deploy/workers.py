"""What an endpoint's workers do: their logs, and how they are, in words."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from llm_worker_client.deploy.api import Api, Body
from llm_worker_client.deploy.errors import NoAnswer, NoEndpoint, PlanError, Problem

# Seconds without a line after which a stream is opened again, and before that.
_QUIET_S = 60.0
_PAUSE_S = 1.0
# Streams in a row that break off before a line.
_TRIES = 5


@dataclass
class Log:
    """A worker's log; ``query`` may have the platform's ``tail``, ``since`` and ``source``."""

    api: Api
    endpoint: str
    worker: str
    query: dict[str, str]
    _last: str = ""
    # Lines with the last identity, which is but a time.
    _seen: int = 0
    _failures: int = 0

    def read(self, idle_s: float) -> Iterator[str]:
        """Yield lines until none has come for so many seconds.

        Raises:
            Problem: the platform refuses it.
            NoAnswer: the stream broke off.
        """
        with self.api.log(self.endpoint, self.worker, self.query, self._last, idle_s) as lines:
            known, known_id = self._seen, self._last
            for identity, text in _events(lines):
                # A stream that is opened again may begin with the lines that were seen last.
                if known and identity == known_id:
                    known -= 1
                    continue
                known = 0
                self._seen = self._seen + 1 if identity == self._last else 1
                self._last, self._failures = identity, 0
                yield text

    def follow(self) -> Iterator[str]:
        """Yield lines until the worker is gone, also when the stream breaks off.

        Raises:
            Problem: the platform refuses it.
            NoAnswer: the platform can't be reached any more.
        """
        while True:
            try:
                yield from self.read(_QUIET_S)
            except NoAnswer:
                self._failures += 1
                if self._failures == _TRIES:
                    raise
            except Problem as problem:
                if self._last and problem.status == 404:
                    return
                raise
            self.api.sleep(_PAUSE_S)


def worker_to_read(api: Api, endpoint: Body) -> str:
    """Choose the worker whose log is read.

    Raises:
        DeployError: there are several, or there is none.
    """
    workers = api.workers(endpoint["id"])["workers"]
    if not workers:
        raise NoEndpoint("no worker is up: the log of those that have ended is in the console")
    if len(workers) > 1:
        names = ", ".join(f"{one['id']} ({one['status']})" for one in workers)
        raise PlanError([f"--worker: which one? {names}"])
    return str(workers[0]["id"])


def status(api: Api, endpoint: Body) -> Body:
    """Find out how an endpoint is: its workers, jobs and roll-out, as the platform has them."""
    identity = endpoint["id"]
    found = {key: endpoint.get(key) for key in ("id", "name", "image")}
    found["bounds"] = {key: endpoint["workers"][key] for key in ("min", "max")}
    listed = api.workers(identity)
    found |= {key: listed[key] for key in ("summary", "workers")}
    found["rollout"] = api.releases(identity).get("rollout") or {}
    # It comes from another service, which knows an endpoint a little later.
    with suppress(Problem):
        found["jobs"] = api.health(identity).get("jobs") or {}
    return found


def status_lines(found: Body) -> Iterator[str]:
    """Yield lines of an endpoint's status."""
    yield f"{found['name']} ({found['id']}): {found['image'] or ''}"
    yield f"{workers_line(found['summary'])} ({found['bounds']['min']} to {found['bounds']['max']})"
    for worker in found["workers"]:
        parts = [worker["status"], worker.get("gpuTypeId"), worker.get("dataCenterId")]
        parts += ["of an earlier version" if worker["isStale"] else None]
        yield f"  {worker['id']}: " + ", ".join(part for part in parts if part)
    rollout = found["rollout"]
    if rollout.get("inProgress"):
        yield f"roll-out: {rollout['workersOnLatest']} of {rollout['workersTotal']} workers"
    if (jobs := found.get("jobs")) is not None:
        yield f"jobs: {_counts(jobs)}"


def workers_line(summary: Mapping[str, int]) -> str:
    """Write how many workers are in which state."""
    return f"workers: {_counts({state: n for state, n in summary.items() if state != 'total'})}"


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in numbers.items() if count) or "none"


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the id and the line of each event of a log."""
    identity = ""
    for line in lines:
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "id":
            identity = value
        elif key == "data":
            try:
                yield identity, json.loads(value)["line"]
            except (ValueError, LookupError, TypeError):
                yield identity, value
