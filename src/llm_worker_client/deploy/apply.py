"""Applies a plan to an endpoint, in one step that is rolled back if it fails.

``plan_deploy_step`` compares the plan with the endpoint as it is. ``EndpointDeployer`` sends the
request and waits until a worker of the new version has answered a test job.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from llm_worker_client.deploy.api import Api, Json, strip_flashboot_suffix
from llm_worker_client.deploy.errors import ApiError, DeployError, EndpointUnhealthy, PlanError
from llm_worker_client.deploy.settings import MASK, contains_secret
from llm_worker_client.deploy.workers import WorkerLog, format_worker_counts
from llm_worker_client.jobs import COMPLETED, ENDED_STATUSES

# Fields with lists whose order has no meaning.
_UNORDERED_LISTS = frozenset(
    {"pools", "excludedTypes", "allowedCudaVersions", "networkVolumes", "dataCenterIds"}
)
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


@dataclass(frozen=True)
class DeployStep:
    """A step of a deployment: one request that brings an endpoint to the state of a plan."""

    method: str | None  # POST or PATCH; None if there is nothing to do
    url: str
    body: Json
    changes: tuple[str, ...]  # one line for each value, without secrets
    existing: Json | None = None  # before the request; None if the request creates it
    undo: Json | None = None  # body of the PATCH that reverts the changes; None for a new endpoint


def plan_deploy_step(desired: Json, existing: Json | None, url: str) -> DeployStep:
    """Compare an endpoint with a plan and return the step that is needed.

    Only fields of the plan's request are compared. The platform replaces variables, pools, workers
    and scaling as a whole, so a change of one of their values sends all of them.
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
            values = [
                MASK
                if group == "env." and contains_secret(name, value)
                else json.dumps(value, sort_keys=True, ensure_ascii=False)
                for value in (before, after)
                if value is not None
            ]
            lines.append(f"{mark} {key}: {' -> '.join(values)}")
    return lines


def _sort_if_unordered(name: str, value: Any) -> Any:
    return sorted(value) if name in _UNORDERED_LISTS and value else value


@dataclass
class EndpointDeployer:
    """Executes a step of a deployment, and rolls it back if it fails."""

    api: Api
    report: Callable[[str], None]  # prints a line about the progress
    warn: Callable[[str], None]  # prints a line about an endpoint that may cost money
    wait_s: float = RESPONSE_WAIT_S  # for the response to a test job; 0 to send no test job
    # Set even if the deployment failed later.
    created_id: str | None = field(default=None, init=False)

    def deploy(self, step: DeployStep) -> str:
        """Send a step's request, wait until a test job is answered, and return the endpoint's id.

        A step without a request does nothing. After a failure or an interruption, a new endpoint is
        limited to zero workers, and an existing endpoint gets its previous state back; if the
        rollback fails, too, ``warn`` names the endpoint.
        """
        existing = step.existing or {}
        if step.method is None:
            return str(existing["id"])
        with ExitStack() as rollback:
            rollback.callback(self._roll_back, existing.get("id"), step)
            try:
                if step.existing is None:
                    self.created_id = endpoint_id = str(self.api.create_endpoint(step.body)["id"])
                    url = self.api.openai_url(endpoint_id)
                    self.report(f"created: {endpoint_id}, for OpenAI's clients {url}")
                else:
                    endpoint_id = str(step.existing["id"])
                    self.api.update_endpoint(endpoint_id, step.body)
                    self.report(f"changed: {endpoint_id}")
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
                self._wait_for_answer(endpoint_id, _make_test_job_input(env))
            rollback.pop_all()
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

    def _wait_for_answer(self, endpoint_id: str, job_input: Json) -> None:
        """Send test jobs, one at a time, until a worker of the newest version has answered one."""
        deadline = time.monotonic() + self.wait_s
        job_id, last_line, unhealthy_polls = None, "", 0
        try:
            while True:
                response = self.api.get_workers(endpoint_id)
                summary, line = response["summary"], format_worker_counts(response["summary"])
                if line != last_line:
                    self.report(line)
                last_line = line
                all_unhealthy = summary["total"] and summary["unhealthy"] == summary["total"]
                unhealthy_polls = unhealthy_polls + 1 if all_unhealthy else 0
                if unhealthy_polls == _MAX_UNHEALTHY_POLLS:
                    raise EndpointUnhealthy("no worker becomes healthy")

                # A worker of an earlier version would take the job if none of the newest is ready.
                workers = response["workers"]
                current = [worker for worker in workers if not worker["isStale"]]
                is_ready = any(worker["status"] in _READY_STATES for worker in current)
                if job_id is None and (is_ready or len(current) == len(workers)):
                    job_id = self.api.submit_job(endpoint_id, job_input)
                if job_id is not None:
                    job = self.api.get_job(endpoint_id, job_id)
                    if job.get("status") in ENDED_STATUSES:
                        job_id = None
                        self.report(f"answered: {_truncate(_parse_test_answer(job))}")
                        workers = self.api.get_workers(endpoint_id)["workers"]
                        stale_ids = [worker["id"] for worker in workers if worker["isStale"]]
                        if job.get("workerId") not in stale_ids:
                            return

                if time.monotonic() >= deadline:
                    hint = "; no GPU is free: name more pools" if "throttled" in last_line else ""
                    state = f"{last_line}{hint}"
                    raise EndpointUnhealthy(f"no answer within {self.wait_s:g} s ({state})")
                self.api.sleep(POLL_S)
        except DeployError:
            with suppress(DeployError):
                self._report_worker_log(endpoint_id)
            raise
        finally:
            if job_id is not None:
                # A job that stays in the queue would still start workers.
                with suppress(DeployError):
                    self.api.cancel_job(endpoint_id, job_id)

    def _report_worker_log(self, endpoint_id: str) -> None:
        for worker in self.api.get_workers(endpoint_id)["workers"][:1]:
            self.report(f"the last lines of worker {worker['id']}:")
            log = WorkerLog(self.api, endpoint_id, worker["id"], {"tail": str(_MAX_LOG_LINES)})
            # Limit the lines, as the log of a running worker does not end.
            for line in islice(log.read_until_idle(_LOG_IDLE_S), _MAX_LOG_LINES):
                self.report(f"  {line}")


def _make_test_job_input(env: Mapping[str, str]) -> Json:
    """Return the input of a small job that an endpoint with the settings ``env`` can answer."""
    if env.get("RUNNER", "").strip() == "pooling":
        return {"openai_route": "/v1/embeddings", "openai_input": {"input": "Hello!"}}
    chat = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}
    return {"openai_route": "/v1/chat/completions", "openai_input": chat}


def _parse_test_answer(job: Json) -> Any:
    """Return the text of a chat response, or the unchanged output of another job."""
    output = job.get("output")
    outputs: list[Any] = output if isinstance(output, list) else [output]
    errors = [part["error"] for part in outputs if isinstance(part, dict) and part.get("error")]
    if job["status"] != COMPLETED:
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
