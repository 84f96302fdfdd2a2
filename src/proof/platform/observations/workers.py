"""Workers that start, share jobs, are removed, and fail to start; and batches that survive them."""

import json
import threading
import time
from collections import Counter, deque
from contextlib import suppress

from llm_worker_client.deploy.errors import DeployError
from llm_worker_client.deploy.workers import WorkerLog
from llm_worker_client.jobs import ENDED_STATUSES, read_outputs
from proof.platform.observations import StepResult
from proof.platform.target import (
    POLL_S,
    EndpointTarget,
    Json,
    describe_error,
    describe_response,
    wait_until,
)

# Seconds to wait for a worker: its machine, its image, the model and the engine.
START_LIMIT_S = 900.0
# Jobs in the queue, more than one worker takes, until two workers have taken some.
_LOAD_JOBS, _LOAD_TOKENS = 32, 200
_BATCH_LINES, _BATCH_TOKENS = 400, 400
# The worker's log line after SIGTERM.
_SIGTERM_LINE = "SIGTERM: taking no more jobs"
_MAX_LOG_LINES = 20
# Seconds of the shortest useful idle timeout, and of the observation of idle workers.
_IDLE_TIMEOUT_S, _IDLE_S = 5, 30.0
_TIMES = ("delayTime", "executionTime")


def share_load(target: EndpointTarget) -> StepResult:
    """Queue jobs until two workers have taken some."""
    start, takers = time.monotonic(), Counter[str]()
    while len(takers) < 2 and time.monotonic() - start < START_LIMIT_S:
        jobs = [target.submit(target.short_input(_LOAD_TOKENS)) for _ in range(_LOAD_JOBS)]
        reports = [target.wait_for(job, ENDED_STATUSES, START_LIMIT_S) for job in jobs]
        takers += Counter(str(report["workerId"]) for report in reports if "workerId" in report)
    return StepResult(
        {"two workers take jobs": len(takers) == 2},
        {"jobs": sorted(takers.values()), "seconds": round(time.monotonic() - start, 1)},
    )


def remove_busy_worker(target: EndpointTarget) -> StepResult:
    """Remove all workers while one runs a job; read the job's status and the worker's log."""
    job_id = target.submit(target.long_input())
    running = target.wait_for(job_id, ("IN_PROGRESS", *ENDED_STATUSES), 60)
    log = deque[str](maxlen=_MAX_LOG_LINES)
    worker_id = str(running.get("workerId"))
    reader = threading.Thread(target=_read_log, args=(target, worker_id, log), daemon=True)
    reader.start()
    seconds = target.remove_workers()
    report = target.wait_for(job_id, ENDED_STATUSES, 15)
    reader.join(10)
    target.cancel(job_id)
    return StepResult(
        {
            "workers are gone": not target.list_workers(),
            "job": report["status"],
            "error": describe_error(report.get("error")),
            "the worker logs SIGTERM": any(_SIGTERM_LINE in line for line in log),
        },
        {"seconds until all workers are gone": seconds},
        list(log),
    )


def _read_log(target: EndpointTarget, worker_id: str, lines: deque[str]) -> None:
    log = WorkerLog(target.api, target.id, worker_id, {"tail": str(_MAX_LOG_LINES)})
    with suppress(DeployError):
        for line in log.read_until_idle(60):
            lines.append(line)


def leave_idle(target: EndpointTarget) -> StepResult:
    """Send no job for longer than the idle timeout; read the log of a worker, and run a job."""
    worker_id = str(target.run(target.short_input())["workerId"])
    target.set_idle_timeout(_IDLE_TIMEOUT_S)
    log = deque[str](maxlen=_MAX_LOG_LINES)
    reader = threading.Thread(target=_read_log, args=(target, worker_id, log), daemon=True)
    reader.start()
    states = Counter[str]()
    deadline = time.monotonic() + _IDLE_S
    while time.monotonic() < deadline:
        states += Counter(worker["status"] for worker in target.list_workers())
        time.sleep(POLL_S)
    report = target.run(target.short_input(), START_LIMIT_S)
    target.set_idle_timeout(None)
    return StepResult(
        {
            "the worker logs SIGTERM": any(_SIGTERM_LINE in line for line in log),
            "a later job": report["status"],
        },
        {
            "polls with each state": dict(states),
            **{f"{name} of the later job": report.get(name) for name in _TIMES},
        },
        list(log),
    )


def start_cold(target: EndpointTarget) -> StepResult:
    """Submit a job while no worker runs, and record the states of workers until it has ended."""
    target.remove_workers()
    job_id = target.submit(target.short_input())
    target.restore_workers()
    report, states = _follow_start(target, job_id)
    return StepResult(
        {"status": report["status"]},
        {name: report.get(name) for name in _TIMES} | {"seconds until each state": states},
    )


def resume_batch(target: EndpointTarget) -> StepResult:
    """Remove all workers while one runs a batch; start workers again, and finish the batch."""
    batch_id = _create_batch(target)
    job = {"batch": {"id": batch_id}}
    policy = {"executionTimeout": 3_600_000}
    job_id = target.submit(job, policy=policy)
    progress: Json = {}

    def has_progress() -> bool:
        report = target.api.get_job(target.id, job_id)
        output = report.get("output")
        progress.update(output if isinstance(output, dict) else {})
        return report["status"] in ENDED_STATUSES or bool(progress.get("done"))

    wait_until(has_progress, 120)
    target.remove_workers()
    interrupted = target.wait_for(job_id, ENDED_STATUSES, 15)
    target.restore_workers()
    if interrupted["status"] in ENDED_STATUSES:
        job_id = target.submit(job, policy=policy)
    report = target.wait_for(job_id, ENDED_STATUSES, START_LIMIT_S)
    (output,) = read_outputs(report)
    counts = output["batch"]["request_counts"]
    return StepResult(
        {
            "batch": output["batch"]["status"],
            "completed lines": counts["completed"],
            "failed lines": counts["failed"],
        },
        {
            "lines before the removal": progress.get("done"),
            "status of the job without its worker": interrupted["status"],
        },
    )


def _create_batch(target: EndpointTarget) -> str:
    body = {
        "model": target.model,
        "prompt": "Once upon a time",
        "max_tokens": _BATCH_TOKENS,
        "ignore_eos": True,
    }
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        for number in range(_BATCH_LINES)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    upload = {"purpose": "batch", "filename": "proof.jsonl", "content": content}
    file_id = _call_route(target, "/v1/files", upload)
    batch = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return _call_route(target, "/v1/batches", batch)


def _call_route(target: EndpointTarget, route: str, body: Json) -> str:
    """Create an object with a job and return the object's id."""
    report = target.run({"route": route, "method": "POST", "body": body})
    (output,) = read_outputs(report)
    return str(output["id"])


def fail_start(target: EndpointTarget) -> StepResult:
    """Call an endpoint whose workers fail to start because of a setting."""
    start = time.monotonic()
    report, states = _follow_start(target, target.submit(target.short_input()))
    seconds = round(time.monotonic() - start, 1)
    gateway = target.http.post("/openai/v1/chat/completions", json=target.chat_body())
    return StepResult(
        {
            "job": report["status"],
            "error": describe_error(report.get("error")),
            "the error names the setting": "MAX_MODEL_LEN" in str(report.get("error")),
            "gateway": describe_response(gateway),
        },
        {"seconds": seconds, "seconds until each state": states},
    )


def _follow_start(target: EndpointTarget, job_id: str) -> tuple[Json, dict[str, float]]:
    """Wait until a job has ended; return its report, and the seconds until workers had a state."""
    start = time.monotonic()
    states: dict[str, float] = {}
    report: Json = {}

    def has_ended() -> bool:
        for worker in target.list_workers():
            states.setdefault(worker["status"], round(time.monotonic() - start, 1))
        report.update(target.api.get_job(target.id, job_id))
        return report["status"] in ENDED_STATUSES

    wait_until(has_ended, START_LIMIT_S)
    return report, states
