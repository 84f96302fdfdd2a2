"""Finds the request that brings an endpoint to the state of a plan, and lists its changes."""

import json
from dataclasses import dataclass
from typing import Any

from llm_worker_client.deploy.api import Api, Json, strip_flashboot_suffix
from llm_worker_client.deploy.errors import ApiError, PlanError
from llm_worker_client.deploy.settings import MASK, contains_secret

# Fields with lists whose order has no meaning.
_UNORDERED_LISTS = frozenset(
    {"pools", "excludedTypes", "allowedCudaVersions", "networkVolumes", "dataCenterIds"}
)


@dataclass(frozen=True)
class DeployStep:
    """A step of a deployment: one request that brings an endpoint to the state of a plan.

    Attributes:
        method: ``POST`` or ``PATCH``; None if there is nothing to do.
        url: The URL of the request.
        body: The body of the request.
        changes: The changes, one line for each value, without secrets.
        existing: The endpoint before the request; None if the request creates it.
        undo: The body of the PATCH that reverts the changes; None for a new endpoint.
    """

    method: str | None
    url: str
    body: Json
    changes: tuple[str, ...]
    existing: Json | None = None
    undo: Json | None = None


def plan_deploy_step(desired: Json, existing: Json | None, url: str) -> DeployStep:
    """Compare an endpoint with a plan and return the step that is needed.

    Only fields of the plan's request are compared. The platform replaces variables, pools, workers
    and scaling as a whole, so a change of one of their values sends all of them.

    Args:
        desired: The body of the request that would create the endpoint.
        existing: The endpoint with the plan's name; None if it doesn't exist.
        url: The URL of all endpoints.

    Raises:
        PlanError: If the existing endpoint is of another type, which can't be changed.
    """
    if existing is None:
        return DeployStep("POST", url, desired, tuple(_diff_lines({}, desired)))
    if existing.get("type", "QUEUE") != desired["type"] or not existing.get("gpu"):
        kind = f"{existing.get('type')}{'' if existing.get('gpu') else ' without GPUs'}"
        raise PlanError([f"name: {desired['name']} is an endpoint of another kind ({kind})"])
    current = endpoint_to_request_body(existing)
    new = {key: value for key, value in desired.items() if key != "type"}
    if strip_flashboot_suffix(existing["name"]) == new["name"]:
        new["name"] = existing["name"]
    new["gpu"] = {"excludedTypes": [], **desired["gpu"]}
    if current["gpu"]["allowedCudaVersions"] and new["gpu"].get("minCudaVersion"):
        # The platform refuses a minimum version together with a list of versions.
        new["gpu"]["allowedCudaVersions"] = []
    changed = {key for key in new if _diff_lines({key: current.get(key)}, {key: new[key]})}
    body = {key: value for key, value in new.items() if key in changed}
    if "scaling" in body or "workers" in body:
        # The scaling type decides which fields of the workers are allowed: send both together.
        body |= {key: new[key] for key in ("scaling", "workers")}
    undo = {key: current[key] for key in body if key in current}
    method, url = "PATCH" if body else None, f"{url}/{existing['id']}"
    return DeployStep(method, url, body, tuple(_diff_lines(undo, body)), existing, undo)


def endpoint_to_request_body(endpoint: Json) -> Json:
    """Return an endpoint in the format of a request, with defaults for missing fields."""
    gpu = {key: endpoint["gpu"][key] for key in ("pools", "count") if key in endpoint["gpu"]}
    gpu.setdefault("count", 1)
    gpu["excludedTypes"] = endpoint["gpu"].get("excludedTypes") or []
    gpu["allowedCudaVersions"] = endpoint["gpu"].get("allowedCudaVersions") or []
    gpu["minCudaVersion"] = endpoint["gpu"].get("minCudaVersion") or ""
    return {**endpoint, "gpu": gpu, "env": endpoint.get("env") or {}}


def check_volumes(api: Api, desired: Json) -> None:
    """Check that the volumes exist and are in the plan's data centers, if it names any.

    A worker without its volume would never start. A key that can't list volumes passes the check.

    Raises:
        PlanError: If a volume does not exist or is in another data center.
        DeployError: If the platform can't be queried.
    """
    if not (ids := desired.get("networkVolumes")):
        return
    try:
        volumes = api.list_volumes()
    except ApiError as error:
        if error.status == 403:
            # The account key may have access to endpoints only, and can't list volumes then.
            return
        raise
    data_centers = {volume["id"]: volume.get("dataCenter") for volume in volumes}
    allowed = desired.get("dataCenterIds") or data_centers.values()
    available = ", ".join(
        f"{each['id']} ({each['name']}, {each.get('dataCenter')})" for each in volumes
    )
    mistakes = [
        f"volumes: {id} is in {data_centers[id]}, which data_centers leaves out"
        for id in ids
        if id in data_centers and data_centers[id] not in allowed
    ]
    mistakes += [
        f"volumes: there is no {id}, only {available or 'no volume'}"
        for id in ids
        if id not in data_centers
    ]
    if mistakes:
        raise PlanError(mistakes)


def _diff_lines(old: Json, new: Json, group: str = "") -> list[str]:
    """Return a line, without secrets, for each new or changed value and each removed variable."""
    lines: list[str] = []
    removed = old.keys() - new.keys() if group == "env." else set()
    for name in sorted({*new, *removed}):
        key, before, after = group + name, old.get(name), new.get(name)
        if isinstance(after, dict) and isinstance(before, dict | None):
            lines += _diff_lines(before or {}, after, f"{key}.")
        elif _sort_if_unordered(name, before) != _sort_if_unordered(name, after):
            mark = "+" if before is None else "-" if after is None else "~"
            values = [_mask_value(key, value) for value in (before, after) if value is not None]
            lines.append(f"{mark} {key}: {' -> '.join(values)}")
    return lines


def _sort_if_unordered(name: str, value: Any) -> Any:
    return sorted(value) if name in _UNORDERED_LISTS and value else value


def _mask_value(key: str, value: Any) -> str:
    group, _, name = key.partition(".")
    if group == "env" and contains_secret(name, value):
        return MASK
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
