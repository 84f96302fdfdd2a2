"""Creates, scales and deletes the endpoints of a proof, and finds those of earlier runs."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from llm_worker_client.deploy.api import Api, strip_flashboot_suffix
from llm_worker_client.deploy.apply import NO_WORKERS, EndpointDeployer
from llm_worker_client.deploy.changes import check_volumes, plan_deploy_step
from llm_worker_client.deploy.errors import DeployError
from proof.platform.plan import NAME_PATTERN, ProofPlan
from proof.platform.time_limit import OutOfTime, limit_time

# Maximum seconds of the deletion of a run's endpoints, with all retries.
DELETION_LIMIT_S = 240.0
_PROBLEMS = (DeployError, OutOfTime, KeyboardInterrupt)


class ProofEndpoints:
    """The endpoints of one run."""

    def __init__(self, api: Api, plan: ProofPlan, report: Callable[[str], None]) -> None:
        self.api = api
        self._plan = plan
        self._report = report
        # The names of the endpoints by their ids, and the names of those whose ids are not known.
        self._names: dict[str, str] = {}
        self._unidentified: set[str] = set()

    def deploy(self, request: dict[str, Any], wait_s: float) -> str:
        """Create an endpoint, wait for its first response and return its id.

        Args:
            request: The body of the request.
            wait_s: Seconds to wait for the first response; 0 to wait for none.
        """
        check_volumes(self.api, request)
        step = plan_deploy_step(request, None, self.api.endpoints_url())
        deployer = EndpointDeployer(self.api, self._report, self._report, wait_s)
        self._unidentified.add(request["name"])
        endpoint_id = deployer.deploy(step)
        self._names[endpoint_id] = request["name"]
        self._unidentified.discard(request["name"])
        return endpoint_id

    def delete_all(self) -> dict[str, str]:
        """Delete the run's endpoints; return the names of those that may be left, by their ids.

        An endpoint whose creation had no response, or failed later, is found by its name.
        """
        if not self._names and not self._unidentified:
            return {}
        self._report("the endpoints are deleted ...")
        try:
            with limit_time(DELETION_LIMIT_S / 4):
                self._names |= find_endpoints(self.api, self._plan.prefix)
            self._unidentified.clear()
        except _PROBLEMS as error:
            self._report(f"the endpoints can't be listed: {str(error) or type(error).__name__}")
        unidentified = {f"unknown id of {name}": name for name in self._unidentified}
        return delete_endpoints(self.api, self._names, self._report) | unidentified


def find_endpoints(api: Api, prefix: str) -> dict[str, str]:
    """Return the names of the endpoints of proofs that begin with a prefix, by their ids."""
    names = {
        str(endpoint["id"]): strip_flashboot_suffix(endpoint["name"])
        for endpoint in api.list_endpoints()
    }
    return {
        id: name
        for id, name in names.items()
        if name.startswith(prefix) and NAME_PATTERN.fullmatch(name)
    }


def delete_endpoints(
    api: Api, names: dict[str, str], report: Callable[[str], None]
) -> dict[str, str]:
    """Delete endpoints; return the names of those that may be left, by their ids.

    An endpoint that can't be deleted is limited to zero workers, so that it costs nothing.
    """
    left = {}
    for id, name in names.items():
        try:
            with limit_time(DELETION_LIMIT_S / len(names)):
                api.delete_endpoint(id)
            report(f"deleted: {name} ({id})")
        except _PROBLEMS as error:
            left[id] = name
            report(f"not deleted: {name} ({id}): {str(error) or type(error).__name__}")
            with suppress(*_PROBLEMS), limit_time(30):
                api.update_endpoint(id, NO_WORKERS)
                report(f"{name} ({id}) can start no workers now")
    return left


def describe_endpoints(names: dict[str, str]) -> Iterable[str]:
    return (f"  {name} ({id})" for id, name in names.items())
