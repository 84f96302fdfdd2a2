"""Creates and deletes the endpoints of a proof in limited time, and finds those of earlier runs."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from llm_worker_client.deploy.api import Api, strip_flashboot_suffix
from llm_worker_client.deploy.apply import (
    NO_WORKERS,
    EndpointDeployer,
    check_volumes,
    plan_deploy_step,
)
from proof.platform.plan import NAME_PATTERN, ProofPlan

# Maximum seconds of the deletion of a run's endpoints, with all retries.
DELETION_LIMIT_S = 240.0


class OutOfTime(BaseException):
    """A time limit is over. Like KeyboardInterrupt, it is no Exception, so no client retries it."""


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise ``OutOfTime`` in the main thread if the block takes longer. Limits can't be nested."""
    start = time.monotonic()
    previous = signal.signal(signal.SIGALRM, _raise_out_of_time)
    other_s, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if other_s:
            # A timer of the caller, such as a test runner's.
            signal.setitimer(signal.ITIMER_REAL, max(other_s - (time.monotonic() - start), 0.001))


def _raise_out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTime("the time limit is over")


# Whatever fails while endpoints are deleted, the others cost money until they are deleted, too.
_PROBLEMS = (Exception, OutOfTime, KeyboardInterrupt)


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
        """Create an endpoint, wait for its first response unless ``wait_s`` is 0, return its id."""
        check_volumes(self.api, request)
        step = plan_deploy_step(request, None, self.api.endpoints_url())
        deployer = EndpointDeployer(self.api, self._report, self._report, wait_s)
        self._unidentified.add(request["name"])
        try:
            return deployer.deploy(step)
        finally:
            if deployer.created_id is not None:
                self._names[deployer.created_id] = request["name"]
                self._unidentified.discard(request["name"])

    def delete_all(self) -> dict[str, str]:
        """Delete the run's endpoints; return the names of those that may be left, by their ids.

        The endpoints with known ids come first. Then an endpoint whose creation had no response is
        looked for by its name.
        """
        if not self._names and not self._unidentified:
            return {}
        self._report("the endpoints are deleted ...")
        left = delete_endpoints(self.api, self._names, self._report)
        try:
            with limit_time(DELETION_LIMIT_S / 4):
                found = find_endpoints(self.api, self._plan.prefix)
        except _PROBLEMS as error:
            self._report(f"the endpoints can't be listed: {_describe(error)}")
            return left | name_unidentified(self._unidentified)
        others = {id: name for id, name in found.names.items() if id not in self._names}
        left |= delete_endpoints(self.api, others, self._report)
        missing = self._unidentified - set(others.values()) if found.is_incomplete else set()
        return left | name_unidentified(missing | found.without_ids)


@dataclass(frozen=True)
class FoundEndpoints:
    """The endpoints of proofs in the account's list."""

    names: dict[str, str]  # by their ids
    without_ids: set[str]  # names of those whose ids the list lacks
    is_incomplete: bool  # whether the list lacks the name or the id of any endpoint


def find_endpoints(api: Api, prefix: str) -> FoundEndpoints:
    listed = [(one["id"], strip_flashboot_suffix(one["name"])) for one in api.list_endpoints()]
    ours = [(id, name) for id, name in listed if name.startswith(prefix)]
    ours = [(id, name) for id, name in ours if NAME_PATTERN.fullmatch(name)]
    return FoundEndpoints(
        {id: name for id, name in ours if id},
        {name for id, name in ours if not id},
        any(not id or not name for id, name in listed),
    )


def name_unidentified(names: set[str]) -> dict[str, str]:
    """Return the names by texts in place of the ids, which nobody knows."""
    return {f"unknown id of {name}": name for name in names}


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
            report(f"not deleted: {name} ({id}): {_describe(error)}")
            with suppress(*_PROBLEMS), limit_time(30):
                api.update_endpoint(id, NO_WORKERS)
                report(f"{name} ({id}) can start no workers now")
    return left


def _describe(error: BaseException) -> str:
    return str(error) or type(error).__name__


def describe_endpoints(names: dict[str, str]) -> Iterable[str]:
    return (f"  {name} ({id})" for id, name in names.items())
