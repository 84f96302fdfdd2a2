"""Jobs that end before their work is done: cancelled, too long, or never taken."""

import time

from llm_worker_client.jobs import ENDED_STATUSES
from proof.platform.observations import StepResult
from proof.platform.target import EndpointTarget, describe_error, describe_response, wait_until

_RUNNING = ("IN_PROGRESS", *ENDED_STATUSES)
# Milliseconds; the smallest values that the platform documents.
_MIN_EXECUTION_TIMEOUT_MS, _MIN_TTL_MS = 5_000, 10_000


def cancel_running_job(target: EndpointTarget) -> StepResult:
    """Cancel a running job, and wait until the platform counts no running job."""
    job_id = target.submit(target.long_input())
    before = target.wait_for(job_id, _RUNNING, 60)["status"]
    start = time.monotonic()
    answer = target.call("POST", f"/cancel/{job_id}")
    report = target.wait_for(job_id, ENDED_STATUSES, 30)

    def is_idle() -> bool:
        return not target.api.get_health(target.id)["jobs"]["inProgress"]

    is_free = wait_until(is_idle, 30)
    return StepResult(
        {
            "status before": before,
            "response of /cancel": answer.get("status"),
            "status after": report["status"],
            "a second cancel": target.http.post(f"/cancel/{job_id}").status_code,
            "no job runs afterwards": is_free,
        },
        {"seconds until no job runs": round(time.monotonic() - start, 1)},
    )


def exceed_execution_timeout(target: EndpointTarget) -> StepResult:
    policy = {"executionTimeout": _MIN_EXECUTION_TIMEOUT_MS}
    start = time.monotonic()
    job_id = target.submit(target.long_input(), policy=policy)
    report = target.wait_for(job_id, ENDED_STATUSES, 60)
    seconds = round(time.monotonic() - start, 1)
    target.cancel(job_id)
    return StepResult(
        {
            "status": report["status"],
            "keys": sorted(report.keys() - {"output"}),
            "error": describe_error(report.get("error")),
        },
        {"seconds": seconds},
    )


def expire_in_queue(target: EndpointTarget) -> StepResult:
    """Let a job's ttl end while no worker can take it."""
    target.remove_workers()
    start = time.monotonic()
    job_id = target.submit(target.short_input(), policy={"ttl": _MIN_TTL_MS})

    def has_ended() -> bool:
        response = target.http.get(f"/status/{job_id}")
        return response.status_code != 200 or response.json()["status"] in ENDED_STATUSES

    ended = wait_until(has_ended, 60)
    response = target.http.get(f"/status/{job_id}")
    report = response.json() if response.is_success else {}
    return StepResult(
        {"ended": ended, "HTTP status": response.status_code, "status": report.get("status")},
        {"seconds": round(time.monotonic() - start, 1)},
    )


def exceed_gateway_timeout(target: EndpointTarget) -> StepResult:
    """Call the gateway while no worker can answer; then purge the queue."""
    target.remove_workers()
    start = time.monotonic()
    response = target.http.post("/openai/v1/chat/completions", json=target.chat_body())
    seconds = round(time.monotonic() - start, 1)
    jobs = target.api.get_health(target.id)["jobs"]
    waiting = target.submit(target.short_input())
    purge = target.call("POST", "/purge-queue")
    purged = target.http.get(f"/status/{waiting}")
    return StepResult(
        {
            "response": describe_response(response),
            "the job stays in the queue": jobs.get("inQueue") == 1,
            "keys of /purge-queue": sorted(purge),
            "a purged job": purged.json().get("status") if purged.is_success else "unknown",
        },
        {"seconds": seconds},
    )
