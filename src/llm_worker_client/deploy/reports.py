"""What is printed of an endpoint: the request for it, how it is, and its log."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.apply import Step
from llm_worker_client.deploy.errors import NotFoundError, PlanError, Problem
from llm_worker_client.deploy.first_chat import workers_line

Body = dict[str, Any]


def document(step: Step) -> str:
    """Write a step as JSON: the same step gives the same bytes."""
    content = {
        "method": step.verb,
        "url": step.url,
        "body": step.body,
        "changes": list(step.changes),
    }
    return as_json(content)


def as_json(content: Body) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)


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
        yield "jobs: " + (", ".join(f"{n} {state}" for state, n in jobs.items() if n) or "none")


def worker_to_read(api: Api, endpoint: Body, wanted: str | None) -> str:
    """Choose the worker whose log is read.

    Raises:
        DeployError: it is not said which one of several, or there is none.
    """
    if wanted is not None:
        return wanted
    workers = api.workers(endpoint["id"])["workers"]
    if not workers:
        raise NotFoundError("no worker is up: the log of those that have ended is in the console")
    if len(workers) > 1:
        names = ", ".join(f"{one['id']} ({one['status']})" for one in workers)
        raise PlanError([f"--worker: which one? {names}"])
    return str(workers[0]["id"])
