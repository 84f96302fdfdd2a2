"""What is to be done to bring an endpoint to a plan: one request, and what it changes."""

import json
from dataclasses import dataclass
from typing import Any

from llm_worker_client.deploy.api import Api, Body, bare_name
from llm_worker_client.deploy.errors import PlanError, Problem
from llm_worker_client.deploy.settings import MASK, is_secret

# Lists without an order.
_SETS = frozenset(
    {"pools", "excludedTypes", "allowedCudaVersions", "networkVolumes", "dataCenterIds"}
)


@dataclass(frozen=True)
class Step:
    """The one request that brings an endpoint to a plan.

    Attributes:
        verb: ``POST`` or ``PATCH``; None if there is nothing to do.
        url: of the request.
        body: of the request.
        changes: what it changes, a line for each value, without secrets.
        there: the endpoint, if there is one.
        undo: the body of the PATCH that takes the change back.
    """

    verb: str | None
    url: str
    body: Body
    changes: tuple[str, ...]
    there: Body | None = None
    undo: Body | None = None


def next_step(wanted: Body, there: Body | None, url: str) -> Step:
    """Find what is to be done.

    Only what the request names is compared. The platform replaces variables, pools, workers and
    scaling as wholes, so each is sent as a whole.

    Args:
        wanted: the request that would create the endpoint.
        there: the endpoint of that name, if there is one.
        url: of all endpoints.

    Raises:
        PlanError: the endpoint that is there is of another kind, which can't be changed.
    """
    if there is None:
        return Step("POST", url, wanted, tuple(_lines({}, wanted)))
    if there.get("type", "QUEUE") != wanted["type"] or not there.get("gpu"):
        kind = f"{there.get('type')}{'' if there.get('gpu') else ' without GPUs'}"
        raise PlanError([f"name: {wanted['name']} is an endpoint of another kind ({kind})"])
    now = as_requested(there)
    new = {key: value for key, value in wanted.items() if key != "type"}
    if bare_name(there["name"]) == new["name"]:
        new["name"] = there["name"]
    new["gpu"] = {"excludedTypes": [], **wanted["gpu"]}
    if now["gpu"]["allowedCudaVersions"] and new["gpu"].get("minCudaVersion"):
        # Versions that are listed make room for a lowest one: the platform refuses both.
        new["gpu"]["allowedCudaVersions"] = []
    body = {key: value for key, value in new.items() if _lines({key: now.get(key)}, {key: value})}
    if "scaling" in body or "workers" in body:
        # The one decides which fields the other may have.
        body |= {key: new[key] for key in ("scaling", "workers")}
    undo = {key: now[key] for key in body if key in now}
    verb = "PATCH" if body else None
    return Step(verb, f"{url}/{there['id']}", body, tuple(_lines(undo, body)), there, undo)


def as_requested(there: Body) -> Body:
    """Write an endpoint's fields as requests have them."""
    gpu = {key: there["gpu"][key] for key in ("pools", "count") if key in there["gpu"]}
    gpu.setdefault("count", 1)
    gpu["excludedTypes"] = there["gpu"].get("excludedTypes") or []
    gpu["allowedCudaVersions"] = there["gpu"].get("allowedCudaVersions") or []
    gpu["minCudaVersion"] = there["gpu"].get("minCudaVersion") or ""
    return {**there, "gpu": gpu, "env": there.get("env") or {}}


def check_volumes(api: Api, wanted: Body) -> None:
    """Check that the volumes are there, each in one of the data centers if some are named.

    Where there is no volume no worker would ever start.

    Raises:
        PlanError: they are not.
        DeployError: the platform can't be asked.
    """
    if not (ids := wanted.get("networkVolumes")):
        return
    try:
        listed = api.volumes()
    except Problem as refused:
        if refused.status == 403:
            # A key may be for endpoints only.
            return
        raise
    centers = {one["id"]: one["dataCenter"] for one in listed}
    allowed = wanted.get("dataCenterIds") or centers.values()
    has = ", ".join(f"{one['id']} ({one['name']}, {one['dataCenter']})" for one in listed)
    mistakes = [
        f"volumes: {one} lies in {centers[one]}, which data_centers leaves out"
        for one in ids
        if one in centers and centers[one] not in allowed
    ]
    mistakes += [
        f"volumes: there is no {one}, but {has or 'none at all'}"
        for one in ids
        if one not in centers
    ]
    if mistakes:
        raise PlanError(mistakes)


def _lines(old: Body, new: Body, group: str = "") -> list[str]:
    """Return a line for each value that differs, also for variables that are gone."""
    lines: list[str] = []
    gone = old.keys() - new.keys() if group == "env." else set()
    for name in sorted({*new, *gone}):
        key, before, after = group + name, old.get(name), new.get(name)
        if isinstance(after, dict) and isinstance(before, dict | None):
            lines += _lines(before or {}, after, f"{key}.")
        elif _ordered(name, before) != _ordered(name, after):
            mark = "+" if before is None else "-" if after is None else "~"
            values = [_written(key, value) for value in (before, after) if value is not None]
            lines.append(f"{mark} {key}: {' -> '.join(values)}")
    return lines


def _ordered(name: str, value: Any) -> Any:
    return sorted(value) if name in _SETS and value else value


def _written(key: str, value: Any) -> str:
    group, _, name = key.partition(".")
    if group == "env" and is_secret(name, value):
        return MASK
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
