"""The platform's endpoints: its REST API, version 2, and the queue of an endpoint."""

from typing import Any
from urllib.parse import quote

from llm_worker_client.deploy.calls import Addresses, Calls
from llm_worker_client.deploy.errors import ExistsError, NotFoundError, Problem, Unreachable

Body = dict[str, Any]

# What the platform adds to the name of an endpoint with FlashBoot where it is not by this API.
_MARK = " -fb"


class Api:
    """Endpoints of an account.

    Args:
        calls: with the account's key.
        addresses: of the platform.
    """

    def __init__(self, calls: Calls, addresses: Addresses | None = None) -> None:
        self.addresses = addresses or Addresses()
        self.calls = calls
        self.url = f"{self.addresses.api.rstrip('/')}/serverless"

    def find(self, name: str) -> Body | None:
        """Return the endpoint of that name, None if there is none.

        Raises:
            ExistsError: there are several, which names do not tell apart.
        """
        return _named(name, self.all())

    def get(self, name: str) -> Body:
        """Return the endpoint of that name or id.

        Raises:
            NotFoundError: there is none.
            ExistsError: there are several of that name.
        """
        listed = self.all()
        by_id = next((one for one in listed if one["id"] == name), None)
        if (found := by_id or _named(name, listed)) is None:
            names = ", ".join(sorted(one["name"] for one in listed)) or "none"
            raise NotFoundError(f"there is no endpoint named {name}; those of the account: {names}")
        return found

    def all(self) -> list[Body]:
        listed: list[Body] = self.calls.send("GET", self.url)["endpoints"]
        return listed

    def create(self, body: Body) -> Body:
        """Create an endpoint; where no answer comes, look whether it is there all the same."""
        try:
            created: Body = self.calls.send("POST", self.url, body)
        except Unreachable:
            if (found := self.find(body["name"])) is None:
                raise
            return found
        return created

    def change(self, identity: str, body: Body, *, repeatable: bool = False) -> Body:
        changed: Body = self.calls.send("PATCH", self.of(identity), body, repeatable=repeatable)
        return changed

    def delete(self, identity: str) -> None:
        """Delete an endpoint; one that is gone counts as deleted."""
        try:
            self.calls.send("DELETE", self.of(identity))
        except Problem as problem:
            if problem.status != 404:
                raise

    def workers(self, identity: str) -> Body:
        listed: Body = self.calls.send("GET", self.of(identity, "workers"))
        return listed

    def releases(self, identity: str) -> Body:
        listed: Body = self.calls.send("GET", self.of(identity, "releases"))
        return listed

    def volumes(self) -> list[Body]:
        """Return the account's network volumes."""
        url = f"{self.addresses.api.rstrip('/')}/network-volumes"
        listed: list[Body] = self.calls.send("GET", url)["networkVolumes"]
        return listed

    # The endpoint's queue.

    def run(self, identity: str, job: Body) -> str:
        """Give the endpoint a job, and return the job's id."""
        url = self._queue(identity, "run")
        # Twice at worst, where an answer is lost.
        given: Body = self.calls.send("POST", url, {"input": job}, repeatable=True)
        return str(given["id"])

    def job(self, identity: str, job: str) -> Body:
        status: Body = self.calls.send("GET", self._queue(identity, "status", job))
        return status

    def cancel(self, identity: str, job: str) -> None:
        self.calls.send("POST", self._queue(identity, "cancel", job), repeatable=True)

    def health(self, identity: str) -> Body:
        health: Body = self.calls.send("GET", self._queue(identity, "health"))
        return health

    def openai_url(self, identity: str) -> str:
        """Return the base address of OpenAI's API."""
        return self._queue(identity, "openai", "v1")

    def of(self, *parts: str) -> str:
        """Return the address of an endpoint, or of what is below it."""
        return "/".join([self.url, *(quote(part, safe="") for part in parts)])

    def _queue(self, *parts: str) -> str:
        base = self.addresses.queue.rstrip("/")
        return "/".join([base, *(quote(part, safe="") for part in parts)])


def _named(name: str, listed: list[Body]) -> Body | None:
    found = [one for one in listed if bare_name(one["name"]) == bare_name(name)]
    if len(found) > 1:
        ids = ", ".join(sorted(one["id"] for one in found))
        raise ExistsError(
            f"{len(found)} endpoints are named {name}: {ids}; "
            "rename one in the console, or delete it by its id: deploy delete <id>"
        )
    return found[0] if found else None


def bare_name(name: str) -> str:
    return name.removesuffix(_MARK)
