"""Brings an endpoint to what a plan says, waits until it answers, and takes back what failed."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from llm_worker_client.deploy.api import Api, Body
from llm_worker_client.deploy.changes import Step
from llm_worker_client.deploy.errors import DeployError, Problem, Unhealthy
from llm_worker_client.deploy.workers import Log, workers_line

# How long an endpoint has for its first answer: a large model is downloaded in it.
WAIT_S = 1800.0
# Seconds between two looks at a job and the workers.
LOOK_S = 3.0
# An endpoint that can start no worker costs nothing.
STOPPED: Body = {"workers": {"min": 0, "max": 0}}

# Looks in a row at nothing but unhealthy workers, after which nothing better is waited for.
_UNHEALTHY_LOOKS = 20
# Lines that are printed of the log of a worker that did not come up, and seconds to wait for more.
_LAST_LINES = 30
_LOG_S = 3.0
_LONGEST = 200

_READY = frozenset({"IDLE", "RUNNING"})
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


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
        there = step.there or {}
        if step.verb is None:
            return str(there["id"])
        with ExitStack() as undo:
            undo.callback(self._take_back, there.get("id"), step)
            try:
                identity = self._send(step)
            except Problem as refused:
                if refused.status < 500:
                    # It did nothing.
                    undo.pop_all()
                raise
            undo.pop_all()
            undo.callback(self._take_back, identity, step)
            if step.there is None:
                # Someone else may have created one meanwhile: two of a name would both cost.
                self.api.find(step.body["name"])
            if self.wait_s:
                env = step.body.get("env", there.get("env")) or {}
                FirstChat(self.api, identity, self.tell, self.wait_s).wait(env)
            undo.pop_all()
        return identity

    def _send(self, step: Step) -> str:
        if step.there is None:
            identity = str(self.api.create(step.body)["id"])
            self.tell(f"created: {identity}, for OpenAI's clients {self.api.openai_url(identity)}")
        else:
            identity = str(step.there["id"])
            self.api.change(identity, step.body)
            self.tell(f"changed: {identity}")
        return identity

    def _take_back(self, identity: str | None, step: Step) -> None:
        """Take a step back; without an id, look whether its endpoint was created."""
        if identity is None:
            name, found = step.body["name"], None
            with suppress(DeployError):
                found = self.api.find(name)
            if found is None:
                self.warn(
                    f"look in the console whether there is an endpoint {name} now, and stop it"
                )
                return
            identity = str(found["id"])
        body = STOPPED if step.undo is None else step.undo
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


@dataclass
class FirstChat:
    """An endpoint's first answer, for which it has ``wait_s``."""

    api: Api
    identity: str
    tell: Callable[[str], None]
    wait_s: float
    _state: str = field(default="", init=False)
    _unhealthy: int = field(default=0, init=False)
    _end: float = field(default=0.0, init=False)

    def wait(self, env: Mapping[str, str]) -> None:
        """Wait until a worker of the endpoint's newest version has answered a small job.

        Args:
            env: the endpoint's settings.

        Raises:
            Unhealthy: none has in time, or the answer is an error.
            DeployError: the platform refuses a request, or can't be reached.
        """
        self._end = time.monotonic() + self.wait_s
        try:
            self._until_answered(_job(env))
        except DeployError:
            with suppress(DeployError):
                self._show_logs()
            raise

    def _until_answered(self, job: Body) -> None:
        sent = None
        try:
            while True:
                workers = self._look()
                if sent is None and _can_answer(workers):
                    sent = self.api.run(self.identity, job)
                if sent is not None:
                    status = self.api.job(self.identity, sent)
                    if status.get("status") in _ENDED:
                        sent = None
                        self.tell(f"answered: {_short(_answer_text(status))}")
                        if not self._is_stale(status.get("workerId")):
                            return
                self._pause()
        finally:
            if sent is not None:
                # A job that waits would start workers again.
                with suppress(DeployError):
                    self.api.cancel(self.identity, sent)

    def _is_stale(self, worker: object) -> bool:
        workers = self.api.workers(self.identity)["workers"]
        return any(one["id"] == worker and one["isStale"] for one in workers)

    def _look(self) -> list[Body]:
        """Return the workers, and report how many there are if that has changed."""
        listed = self.api.workers(self.identity)
        summary, state = listed["summary"], workers_line(listed["summary"])
        if state != self._state:
            self.tell(state)
        self._state = state
        ill = summary["total"] and summary["unhealthy"] == summary["total"]
        self._unhealthy = self._unhealthy + 1 if ill else 0
        if self._unhealthy == _UNHEALTHY_LOOKS:
            raise Unhealthy("no worker becomes healthy")
        workers: list[Body] = listed["workers"]
        return workers

    def _pause(self) -> None:
        if time.monotonic() >= self._end:
            why = "; no GPU is free: name more pools" if "throttled" in self._state else ""
            raise Unhealthy(f"no answer within {self.wait_s:g} s ({self._state}{why})")
        self.api.sleep(LOOK_S)

    def _show_logs(self) -> None:
        for worker in self.api.workers(self.identity)["workers"][:1]:
            self.tell(f"the last lines of worker {worker['id']}:")
            log = Log(self.api, self.identity, worker["id"], {"tail": str(_LAST_LINES)})
            # A worker that goes on printing does not end its log.
            for line in islice(log.read(_LOG_S), _LAST_LINES):
                self.tell(f"  {line}")


def _can_answer(workers: list[Body]) -> bool:
    """Return whether a worker of the newest version would answer, as far as that is seen."""
    fresh = [one for one in workers if not one["isStale"]]
    return len(fresh) == len(workers) or any(one["status"] in _READY for one in fresh)


def _job(env: Mapping[str, str]) -> Body:
    """Build the input of a small job that an endpoint with these settings answers."""
    if env.get("RUNNER", "").strip() == "pooling":
        return {"openai_route": "/v1/embeddings", "openai_input": {"input": "Hello!"}}
    chat = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}
    return {"openai_route": "/v1/chat/completions", "openai_input": chat}


def _answer_text(status: Body) -> Any:
    """Return the text that a job has answered; another answer than a chat's is returned unchanged.

    Raises:
        Unhealthy: the job has failed.
    """
    output = status.get("output")
    parts: list[Any] = output if isinstance(output, list) else [output]
    wrong = next((one for one in parts if isinstance(one, dict) and one.get("error")), None)
    if status["status"] != "COMPLETED":
        problem = f"{status['status']}: {_short(status.get('error'))}"
        raise Unhealthy(f"the first request failed: {problem}")
    if wrong is not None:
        raise Unhealthy(f"the first request failed: {_short(wrong['error'])}")
    try:
        return parts[0]["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return output


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
