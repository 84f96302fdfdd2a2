"""Applies a plan to an endpoint, checks the endpoint with a test job, and rolls back on failure."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from llm_worker_client.deploy.api import Api, Json
from llm_worker_client.deploy.changes import DeployStep
from llm_worker_client.deploy.errors import ApiError, DeployError, EndpointUnhealthy
from llm_worker_client.deploy.workers import WorkerLog, format_worker_counts

# Seconds to wait for the test job's response, after a possible download of a large model.
RESPONSE_WAIT_S = 1800.0
# Seconds between two polls of the job and the workers.
POLL_S = 3.0
# Body of a request that stops all workers, so that the endpoint costs nothing.
NO_WORKERS: Json = {"workers": {"min": 0, "max": 0}}

# Consecutive polls with only unhealthy workers after which the deployment fails.
_MAX_UNHEALTHY_POLLS = 20
# Maximum number of log lines to print after a failure, and seconds to wait for each line.
_MAX_LOG_LINES = 30
_LOG_IDLE_S = 3.0
_MAX_OUTPUT_LENGTH = 200

_READY_STATES = frozenset({"IDLE", "RUNNING"})
_FINAL_STATES = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


@dataclass
class EndpointDeployer:
    """Executes a step of a deployment, and rolls it back if it fails.

    Attributes:
        api: The client for the account's endpoints.
        report: Prints a line about the progress.
        warn: Prints a line about an endpoint that may cost money.
        wait_s: Seconds to wait for the response to a test job; 0 to send no test job.
        created_id: Id of the endpoint that the deployment has created, even if it failed later.
    """

    api: Api
    report: Callable[[str], None]
    warn: Callable[[str], None]
    wait_s: float = RESPONSE_WAIT_S
    created_id: str | None = field(default=None, init=False)

    def deploy(self, step: DeployStep) -> str:
        """Send a step's request, wait until a test job is answered, and return the endpoint's id.

        A step without a request does nothing. After a failure or an interruption, a new endpoint is
        limited to zero workers, and an existing endpoint gets its previous state back; if the
        rollback fails, too, ``warn`` names the endpoint.

        Raises:
            DeployError: If the deployment failed.
        """
        existing = step.existing or {}
        if step.method is None:
            return str(existing["id"])
        with ExitStack() as rollback:
            rollback.callback(self._roll_back, existing.get("id"), step)
            try:
                endpoint_id = self._send_step_request(step)
            except ApiError as error:
                if error.status < 500:
                    # The platform refused the request, so there is nothing to roll back.
                    rollback.pop_all()
                raise
            rollback.pop_all()
            rollback.callback(self._roll_back, endpoint_id, step)
            if step.existing is None:
                # Raise if someone else has also created an endpoint of this name: both would cost.
                self.api.find_endpoint_by_name(step.body["name"])
            if self.wait_s:
                env = step.body.get("env", existing.get("env")) or {}
                ReadinessCheck(self.api, endpoint_id, self.report, self.wait_s).wait_for_answer(env)
            rollback.pop_all()
        return endpoint_id

    def _send_step_request(self, step: DeployStep) -> str:
        if step.existing is None:
            self.created_id = endpoint_id = str(self.api.create_endpoint(step.body)["id"])
            url = self.api.openai_url(endpoint_id)
            self.report(f"created: {endpoint_id}, for OpenAI's clients {url}")
        else:
            endpoint_id = str(step.existing["id"])
            self.api.update_endpoint(endpoint_id, step.body)
            self.report(f"changed: {endpoint_id}")
        return endpoint_id

    def _roll_back(self, endpoint_id: str | None, step: DeployStep) -> None:
        """Revert a step; without an id, look for an endpoint with the name in the request."""
        if endpoint_id is None:
            name, endpoint = step.body["name"], None
            with suppress(DeployError):
                endpoint = self.api.find_endpoint_by_name(name)
            if endpoint is None:
                self.warn(
                    f"check in the console whether there is an endpoint {name} now, and stop it"
                )
                return
            endpoint_id = str(endpoint["id"])
        body = NO_WORKERS if step.undo is None else step.undo
        try:
            self.api.update_endpoint(endpoint_id, body, can_retry=True)
        except (DeployError, KeyboardInterrupt) as error:
            reason = str(error) or "interrupted"
            self.warn(
                f"endpoint {endpoint_id} may cause costs: stop or correct it in the console: "
                f"{reason}"
            )
            if isinstance(error, KeyboardInterrupt):
                raise
        else:
            outcome = "can start no workers now" if body is NO_WORKERS else "is restored"
            self.report(f"endpoint {endpoint_id} {outcome}")


@dataclass
class ReadinessCheck:
    """Sends test jobs to an endpoint, one at a time, until its newest version answers one.

    The check fails after ``wait_s`` seconds, or earlier if all workers stay unhealthy.
    """

    api: Api
    endpoint_id: str
    report: Callable[[str], None]
    wait_s: float
    _last_line: str = field(default="", init=False)
    _unhealthy_polls: int = field(default=0, init=False)

    def wait_for_answer(self, env: Mapping[str, str]) -> None:
        """Send test jobs until a worker of the endpoint's newest version has answered one.

        Args:
            env: The endpoint's environment variables, which determine the job.

        Raises:
            EndpointUnhealthy: If no worker answers in time, all stay unhealthy, or a job fails.
            DeployError: If the platform refuses a request or can't be reached.
        """
        deadline = time.monotonic() + self.wait_s
        job_input, job_id = _make_test_job_input(env), None
        try:
            while True:
                workers = self._poll_workers()
                if job_id is None and _can_newest_version_answer(workers):
                    job_id = self.api.submit_job(self.endpoint_id, job_input)
                if job_id is not None:
                    job = self.api.get_job(self.endpoint_id, job_id)
                    if job.get("status") in _FINAL_STATES:
                        job_id = None
                        self.report(f"answered: {_truncate(_parse_test_answer(job))}")
                        if not self._is_stale_worker(job.get("workerId")):
                            return
                if time.monotonic() >= deadline:
                    hint = "; no GPU is free: name more pools"
                    state = self._last_line + (hint if "throttled" in self._last_line else "")
                    raise EndpointUnhealthy(f"no answer within {self.wait_s:g} s ({state})")
                self.api.sleep(POLL_S)
        except DeployError:
            with suppress(DeployError):
                self._report_worker_log()
            raise
        finally:
            if job_id is not None:
                # A job that stays in the queue would still start workers.
                with suppress(DeployError):
                    self.api.cancel_job(self.endpoint_id, job_id)

    def _is_stale_worker(self, worker_id: object) -> bool:
        workers = self.api.get_workers(self.endpoint_id)["workers"]
        return any(worker["id"] == worker_id and worker["isStale"] for worker in workers)

    def _poll_workers(self) -> list[Json]:
        """Return the workers; report their numbers if changed; raise if all stay unhealthy."""
        response = self.api.get_workers(self.endpoint_id)
        summary, line = response["summary"], format_worker_counts(response["summary"])
        if line != self._last_line:
            self.report(line)
        self._last_line = line
        all_unhealthy = summary["total"] and summary["unhealthy"] == summary["total"]
        self._unhealthy_polls = self._unhealthy_polls + 1 if all_unhealthy else 0
        if self._unhealthy_polls == _MAX_UNHEALTHY_POLLS:
            raise EndpointUnhealthy("no worker becomes healthy")
        workers: list[Json] = response["workers"]
        return workers

    def _report_worker_log(self) -> None:
        for worker in self.api.get_workers(self.endpoint_id)["workers"][:1]:
            self.report(f"the last lines of worker {worker['id']}:")
            log = WorkerLog(self.api, self.endpoint_id, worker["id"], {"tail": str(_MAX_LOG_LINES)})
            # Limit the lines, as the log of a running worker does not end.
            for line in islice(log.read_until_idle(_LOG_IDLE_S), _MAX_LOG_LINES):
                self.report(f"  {line}")


def _can_newest_version_answer(workers: list[Json]) -> bool:
    """Return whether the newest version has a ready worker, or there is no earlier version."""
    current = [worker for worker in workers if not worker["isStale"]]
    is_ready = any(worker["status"] in _READY_STATES for worker in current)
    return is_ready or len(current) == len(workers)


def _make_test_job_input(env: Mapping[str, str]) -> Json:
    """Return the input of a small job that an endpoint with the settings ``env`` can answer."""
    if env.get("RUNNER", "").strip() == "pooling":
        return {"openai_route": "/v1/embeddings", "openai_input": {"input": "Hello!"}}
    chat = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}
    return {"openai_route": "/v1/chat/completions", "openai_input": chat}


def _parse_test_answer(job: Json) -> Any:
    """Return the text of a chat response, or the unchanged output of another job.

    Raises:
        EndpointUnhealthy: If the job failed or its output is an error.
    """
    output = job.get("output")
    outputs: list[Any] = output if isinstance(output, list) else [output]
    errors = [part["error"] for part in outputs if isinstance(part, dict) and part.get("error")]
    if job["status"] != "COMPLETED":
        reason = f"{job['status']}: {_truncate(job.get('error'))}"
        raise EndpointUnhealthy(f"the first request failed: {reason}")
    if errors:
        raise EndpointUnhealthy(f"the first request failed: {_truncate(errors[0])}")
    try:
        return outputs[0]["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return output


def _truncate(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_OUTPUT_LENGTH else text[:_MAX_OUTPUT_LENGTH] + "…"
