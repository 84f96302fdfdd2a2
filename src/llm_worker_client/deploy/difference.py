"""What distinguishes an endpoint from the request that would create it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_worker_client.deploy.api import bare_name
from llm_worker_client.deploy.errors import PlanError
from llm_worker_client.deploy.secrets import MASK, is_secret

Body = dict[str, Any]

# Lists without an order.
_SETS = frozenset({"pools", "excludedTypes", "allowedCudaVersions", "networkVolumes"}) | {
    "dataCenterIds"
}


@dataclass(frozen=True)
class Difference:
    """What a PATCH would change.

    Attributes:
        body: of the PATCH; empty if the endpoint is as it shall be.
        undo: of the PATCH that brings the endpoint back to what it was.
        changes: a line for each value, without secrets.
    """

    body: Body
    undo: Body
    changes: tuple[str, ...]


def difference(wanted: Body, there: Body) -> Difference:
    """Compare a request with the endpoint that is there.

    Only what the request names is compared. The platform replaces variables, pools, workers and
    scaling as wholes, so each is sent as a whole.

    Raises:
        PlanError: the endpoint is of another kind, which can't be changed.
    """
    if there.get("type", "QUEUE") != wanted["type"] or not there.get("gpu"):
        kind = f"{there.get('type')}{'' if there.get('gpu') else ' without GPUs'}"
        raise PlanError([f"name: {wanted['name']} is an endpoint of another kind ({kind})"])
    now = as_requested(there)
    new = {key: value for key, value in wanted.items() if key != "type"}
    if bare_name(there["name"]) == new["name"]:
        new["name"] = there["name"]
    body = {key: value for key, value in new.items() if not _same(key, value, now.get(key))}
    if "scaling" in body or "workers" in body:
        # The one decides which fields the other may have.
        body |= {key: new[key] for key in ("scaling", "workers")}
    if "gpu" in body:
        body["gpu"] = _without_other_cuda(body["gpu"], there["gpu"])
    undo = {key: now[key] for key in body if key in now}
    changes = tuple(line for key in sorted(body) for line in _lines(key, now.get(key), body[key]))
    return Difference(body, undo, changes)


def additions(wanted: Body) -> tuple[str, ...]:
    """Return the lines for an endpoint that is new."""
    return tuple(line for key in sorted(wanted) for line in _lines(key, None, wanted[key]))


def as_requested(there: Body) -> Body:
    """Write an endpoint's fields as requests have them."""
    now = {key: value for key, value in there.items() if key != "gpu"}
    gpu = {key: there["gpu"][key] for key in ("pools", "count") if key in there["gpu"]}
    gpu.setdefault("count", 1)
    gpu["excludedTypes"] = there["gpu"].get("excludedTypes") or []
    gpu["allowedCudaVersions"] = there["gpu"].get("allowedCudaVersions") or []
    gpu["minCudaVersion"] = there["gpu"].get("minCudaVersion") or ""
    return now | {"gpu": gpu, "env": there.get("env") or {}}


def _without_other_cuda(wanted: Body, there: Body) -> Body:
    """Clear versions that are listed beside the lowest one: the platform refuses both."""
    both = wanted.get("minCudaVersion") and there.get("allowedCudaVersions")
    return {"excludedTypes": [], **wanted} | ({"allowedCudaVersions": []} if both else {})


def _same(key: str, wanted: Any, there: Any) -> bool:
    if key == "gpu":
        wanted = {"excludedTypes": [], "allowedCudaVersions": [], **wanted}
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        return wanted.keys() == there.keys() and all(
            _same(name, wanted[name], there[name]) for name in wanted
        )
    if key in _SETS and isinstance(there, list):
        return sorted(wanted) == sorted(there)
    return bool(wanted == there)


def _lines(key: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(new, Mapping) and isinstance(old, Mapping | None):
        before: Mapping[str, Any] = old or {}
        gone = before.keys() - new.keys() if key == "env" else set()
        for name in sorted({*new, *gone}):
            yield from _lines(f"{key}.{name}", before.get(name), new.get(name))
    elif old is None and new is not None:
        yield f"+ {key}: {_shown(key, new)}"
    elif new is None and old is not None:
        yield f"- {key}: {_shown(key, old)}"
    elif not _same(key.rpartition(".")[2], new, old):
        yield f"~ {key}: {_shown(key, old)} -> {_shown(key, new)}"


def _shown(key: str, value: Any) -> str:
    group, _, name = key.partition(".")
    if group == "env" and is_secret(name, value):
        return MASK
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
