"""Brings an endpoint to what a plan says, and back if that fails."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.difference import additions, difference
from llm_worker_client.deploy.errors import DeployError, Problem
from llm_worker_client.deploy.first_chat import FirstChat, first_job

Body = dict[str, Any]

# How long an endpoint has for its first answer: a large model is downloaded in it.
WAIT_S = 1800.0
# An endpoint that can start no worker costs nothing.
STOPPED: Body = {"workers": {"min": 0, "max": 0}}


@dataclass(frozen=True)
class Step:
    """The one request that brings an endpoint to a plan.

    Attributes:
        verb: ``POST`` or ``PATCH``; None if there is nothing to do.
        url: of the request.
        body: of the request.
        changes: what it changes, a line for each value.
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

    Args:
        wanted: the request that would create the endpoint.
        there: the endpoint of that name, if there is one.
        url: of all endpoints.

    Raises:
        PlanError: the endpoint that is there can't be changed to it.
    """
    if there is None:
        return Step("POST", url, wanted, additions(wanted))
    found = difference(wanted, there)
    verb = "PATCH" if found.body else None
    return Step(verb, f"{url}/{there['id']}", found.body, found.changes, there, found.undo)


@dataclass
class Deployment:
    """Carries steps out.

    Attributes:
        api: the account's endpoints.
        tell: prints a line.
        warn: prints a line about what may cost.
        wait_s: how long an endpoint has to answer its first request; 0 sends none.
    """

    api: Api
    tell: Callable[[str], None]
    warn: Callable[[str], None]
    wait_s: float = WAIT_S

    def carry_out(self, step: Step) -> str:
        """Take a step, wait until the endpoint answers, and return its id.

        A failure in the middle, also an interruption, leaves nothing that costs: a new endpoint
        may start no workers then, and one that was there gets back what it had.

        Raises:
            DeployError: it failed.
        """
        if step.there is None:
            return self._create(step.body)
        if step.verb is not None:
            self._change(step, step.there)
        return str(step.there["id"])

    def _create(self, body: Body) -> str:
        with ExitStack() as undo:
            undo.callback(self._stop, body["name"])
            with _nothing_done(undo):
                identity = str(self.api.create(body)["id"])
            undo.pop_all()
            undo.callback(self._take_back, identity, STOPPED)
            self.tell(f"created: {identity}, for OpenAI's clients {self.api.openai_url(identity)}")
            # Someone else may have created one meanwhile: two of a name would both cost.
            self.api.find(body["name"])
            self._first_chat(identity, body["env"])
            undo.pop_all()
        return identity

    def _change(self, step: Step, there: Body) -> None:
        identity = str(there["id"])
        with ExitStack() as undo:
            undo.callback(self._take_back, identity, step.undo or {})
            with _nothing_done(undo):
                self.api.change(identity, step.body)
            self.tell(f"changed: {identity}")
            self._first_chat(identity, step.body.get("env", there.get("env")) or {})
            undo.pop_all()

    def _first_chat(self, identity: str, env: Body) -> None:
        if self.wait_s:
            chat = FirstChat(self.api, identity, self.tell, self.wait_s)
            chat.wait(first_job(env))

    def _stop(self, name: str) -> None:
        """Stop an endpoint whose creation was not answered, if it is there."""
        found = None
        with suppress(DeployError):
            found = self.api.find(name)
        if found is None:
            self.warn(f"look in the console whether there is an endpoint {name} now, and stop it")
        else:
            self._take_back(str(found["id"]), STOPPED)

    def _take_back(self, identity: str, body: Body) -> None:
        try:
            self.api.change(identity, body, repeatable=True)
        except (DeployError, KeyboardInterrupt) as why:
            reason = str(why) or "interrupted"
            self.warn(f"endpoint {identity} may cost: stop or mend it in the console: {reason}")
            if isinstance(why, KeyboardInterrupt):
                raise
        else:
            stopped = "may start no workers now" if body is STOPPED else "has what it had before"
            self.tell(f"endpoint {identity} {stopped}")


@contextmanager
def _nothing_done(undo: ExitStack) -> Iterator[None]:
    """Drop what is to be undone where the platform refuses the request: it did nothing."""
    try:
        yield
    except Problem as refused:
        if refused.status < 500:
            undo.pop_all()
        raise
