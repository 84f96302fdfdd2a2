"""Waits until an endpoint answers: one small request, and what its workers do meanwhile."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import DeployError, Unhealthy
from llm_worker_client.deploy.logs import Log

Body = dict[str, Any]

# Seconds between two looks at a job and the workers.
LOOK_S = 3.0
# Looks in a row at nothing but unhealthy workers, after which nothing better is waited for.
_UNHEALTHY_LOOKS = 20
# Lines of its log that are shown of a worker which did not come up, and seconds to wait for more.
_LAST_LINES = 30
_LOG_S = 3.0
_SHOWN = 200

_READY = frozenset({"IDLE", "RUNNING"})
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


def first_job(env: Mapping[str, str]) -> Body:
    """Build the input of a small job that an endpoint with these settings answers."""
    if env.get("RUNNER", "").strip() == "pooling":
        return {"openai_route": "/v1/embeddings", "openai_input": {"input": "Hello!"}}
    chat = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}
    return {"openai_route": "/v1/chat/completions", "openai_input": chat}


@dataclass
class FirstChat:
    """One endpoint's first answer.

    Attributes:
        api: the account's endpoints.
        identity: of the endpoint.
        tell: prints a line.
        wait_s: how long it has.
    """

    api: Api
    identity: str
    tell: Callable[[str], None]
    wait_s: float
    _told: str = field(default="", init=False)
    _unhealthy: int = field(default=0, init=False)
    _end: float = field(default=0.0, init=False)

    def wait(self, job: Body) -> None:
        """Wait until a worker of the endpoint's newest version has answered.

        Args:
            job: the input that it is sent.

        Raises:
            Unhealthy: none has in time, or the answer is an error.
            DeployError: the platform refuses a request, or can't be reached.
        """
        self._end = time.monotonic() + self.wait_s
        try:
            while True:
                self._until_fresh()
                answered = self._answer(job)
                if not self._is_stale(answered.get("workerId")):
                    return
                self._pause()
        except DeployError:
            with suppress(DeployError):
                self._show_logs()
            raise

    def _until_fresh(self) -> None:
        """Wait while there are workers of an earlier version only: they would answer."""
        while True:
            workers = self._look()["workers"]
            stale = [one for one in workers if one["isStale"]]
            if not stale or any(self._can_answer(one) for one in workers):
                return
            self._pause()

    def _answer(self, job: Body) -> Body:
        sent = self.api.run(self.identity, job)
        status: Body = {}
        try:
            while (status := self.api.job(self.identity, sent)).get("status") not in _ENDED:
                self._look()
                self._pause()
        finally:
            if status.get("status") not in _ENDED:
                # A job that waits would start workers again.
                with suppress(DeployError):
                    self.api.cancel(self.identity, sent)
        if (problem := _problem(status)) is not None:
            raise Unhealthy(f"the first request failed: {problem}")
        self.tell(f"answered: {_short(_said(status.get('output')))}")
        return status

    def _look(self) -> Body:
        listed = self.api.workers(self.identity)
        told = workers_line(listed["summary"])
        if told != self._told:
            self.tell(told)
        self._told = told
        summary = listed["summary"]
        ill = summary["total"] and summary["unhealthy"] == summary["total"]
        self._unhealthy = self._unhealthy + 1 if ill else 0
        if self._unhealthy == _UNHEALTHY_LOOKS:
            raise Unhealthy("no worker becomes healthy")
        return listed

    def _pause(self) -> None:
        if time.monotonic() >= self._end:
            why = "; no GPU is free: name more pools" if "throttled" in self._told else ""
            raise Unhealthy(f"no answer within {self.wait_s:g} s ({self._told}{why})")
        self.api.calls.sleep(LOOK_S)

    def _can_answer(self, worker: Body) -> bool:
        return worker["status"] in _READY and not worker["isStale"]

    def _is_stale(self, worker: object) -> bool:
        workers = self.api.workers(self.identity)["workers"]
        return any(one["id"] == worker and one["isStale"] for one in workers)

    def _show_logs(self) -> None:
        for worker in self.api.workers(self.identity)["workers"][:1]:
            self.tell(f"the last lines of worker {worker['id']}:")
            log = Log(self.api, self.identity, worker["id"], {"tail": str(_LAST_LINES)})
            # A worker that goes on printing does not end its log.
            for line in islice(log.read(_LOG_S), _LAST_LINES):
                self.tell(f"  {line.text}")


def workers_line(summary: Mapping[str, int]) -> str:
    """Write how many workers are in which state."""
    counts = [f"{count} {state}" for state, count in summary.items() if count and state != "total"]
    return "workers: " + (", ".join(counts) or "none")


def _problem(status: Body) -> str | None:
    output = status.get("output")
    if status["status"] != "COMPLETED":
        return f"{status['status']}: {_short(status.get('error'))}"
    parts = output if isinstance(output, list) else [output]
    wrong = next((one for one in parts if isinstance(one, dict) and one.get("error")), None)
    return None if wrong is None else _short(wrong["error"])


def _said(output: Any) -> Any:
    """Return the text of a chat's answer; another answer is returned unchanged."""
    try:
        return (output[0] if isinstance(output, list) else output)["choices"][0]["message"][
            "content"
        ]
    except (LookupError, TypeError):
        return output


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
