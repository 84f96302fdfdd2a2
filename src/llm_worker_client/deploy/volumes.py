"""Checks the network volumes of a plan: where there is none, no worker would ever start."""

from typing import Any

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import PlanError, Problem

Body = dict[str, Any]


def check_volumes(api: Api, wanted: Body) -> None:
    """Check that the volumes are there, each in one of the data centers if some are named.

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
    there = {one["id"]: one for one in listed}
    centers = wanted.get("dataCenterIds")
    mistakes = [
        f"volumes: {one} lies in {there[one]['dataCenter']}, which data_centers leaves out"
        for one in ids
        if one in there and centers and there[one]["dataCenter"] not in centers
    ]
    if unknown := [one for one in ids if one not in there]:
        has = ", ".join(f"{one['id']} ({one['name']}, {one['dataCenter']})" for one in listed)
        mistakes += [f"volumes: there is no {one}, but {has or 'none at all'}" for one in unknown]
    if mistakes:
        raise PlanError(mistakes)
