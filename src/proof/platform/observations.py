"""Observations: functions that observe one behaviour of the platform each.

First come the calls of docs/guide.md: models, chats, completions, and jobs in the raw form. Then
requests that the gateway may treat in several ways; jobs that end before their work is done; and
workers that start, share jobs, are removed, and fail to start.
"""

import json
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from llm_worker_client.deploy.errors import DeployError
from llm_worker_client.deploy.workers import WorkerLog
from llm_worker_client.jobs import ENDED_STATUSES, read_outputs
from proof.platform.target import (
    POLL_S,
    EndpointTarget,
    Json,
    describe_error,
    describe_response,
    wait_until,
)

_CHAT = "/openai/v1/chat/completions"
_DONE = b"data: [DONE]"
# Tokens of a job that streams, whose chunks have 1, 3, 9, 27 and the rest of the tokens.
_STREAM_TOKENS = 50
_RUNNING = ("IN_PROGRESS", *ENDED_STATUSES)
# Milliseconds; the smallest values that the platform documents.
_MIN_EXECUTION_TIMEOUT_MS, _MIN_TTL_MS = 5_000, 10_000
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


@dataclass(frozen=True)
class StepResult:
    """The result of an observation."""

    facts: dict[str, Any]  # compared with the emulator's; by a description of each fact
    # Times and other values that differ between runs, so that they are not compared.
    figures: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)  # the last lines of a worker's log


def list_models(target: EndpointTarget) -> StepResult:
    answer = target.openai.models.with_raw_response.list()
    names = [model.id for model in answer.parse().data]
    return StepResult(
        {"status": answer.http_response.status_code, "lists the model": target.model in names}
    )


def chat(target: EndpointTarget) -> StepResult:
    return _complete(target, "chat.completion", _CHAT, target.chat_body())


def complete_text(target: EndpointTarget) -> StepResult:
    body = target.chat_body(prompt="Once upon a time")
    del body["messages"]
    return _complete(target, "text_completion", "/openai/v1/completions", body)


def _complete(target: EndpointTarget, kind: str, path: str, body: Json) -> StepResult:
    start = time.monotonic()
    client = target.openai
    extra = {"ignore_eos": body.pop("ignore_eos")}
    create: Any = client.completions if "prompt" in body else client.chat.completions
    answer = create.with_raw_response.create(**body, extra_body=extra)
    seconds = round(time.monotonic() - start, 3)
    parsed = answer.parse()
    return StepResult(
        {
            "status": answer.http_response.status_code,
            "media type": _media_type(answer.http_response),
            "object": parsed.object,
            "finish_reason": parsed.choices[0].finish_reason,
            "completion_tokens": parsed.usage.completion_tokens,
            "the id contains a job's id": target.knows_job(parsed.id.partition("-")[2]),
        },
        {"seconds": seconds},
    )


def stream_chat(target: EndpointTarget) -> StepResult:
    """Stream a chat; the number of events in each read shows how chunks arrive."""
    start = time.monotonic()
    reads: list[tuple[float, int]] = []
    content = b""
    body = target.chat_body(max_tokens=_STREAM_TOKENS, stream=True)
    with target.http.stream("POST", _CHAT, json=body) as response:
        for part in response.iter_raw():
            reads.append((round(time.monotonic() - start, 3), part.count(b"data: ")))
            content += part
    events = target.openai.chat.completions.create(
        model=target.model,
        messages=[{"role": "user", "content": "Hello!"}],
        max_tokens=8,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    reasons = {choice.finish_reason for event in events for choice in event.choices}
    return StepResult(
        {
            "status": response.status_code,
            "media type": _media_type(response),
            "events are streamed one after another": len(reads) > 1,
            "last event": "[DONE]" if content.rstrip().endswith(_DONE) else "another",
            "OpenAI's client reads the stream": "length" in reasons,
        },
        {
            "events in each read": [count for _, count in reads],
            "seconds of each read": [seconds for seconds, _ in reads],
        },
    )


def run_synchronously(target: EndpointTarget) -> StepResult:
    response = target.http.post("/runsync", json={"input": target.short_input(8)})
    report = response.json()
    return StepResult(
        {
            "HTTP status": response.status_code,
            "keys": sorted(report),
            "status": report.get("status"),
            "yields in the output": len(read_outputs(report)),
        },
        {name: report.get(name) for name in _TIMES},
    )


def follow_stream(target: EndpointTarget) -> StepResult:
    """Follow a streamed job with /run and /stream, then read its status."""
    # Without a limit of a chunk's delay, the worker's chunks have fixed sizes.
    job = target.short_input(_STREAM_TOKENS, stream=True, max_batch_delay_ms=0)
    submitted = target.call("POST", "/run", {"input": job})
    start, polls, chunks = time.monotonic(), 0, list[Json]()
    report: Json = {}
    while report.get("status") not in ENDED_STATUSES and time.monotonic() - start < 60:
        report = target.call("GET", f"/stream/{submitted['id']}")
        chunks += report.get("stream") or []
        polls += 1
        time.sleep(0 if chunks else POLL_S)
    tokens = [len(chunk["output"]["choices"][0]["tokens"]) for chunk in chunks]
    again = target.call("GET", f"/stream/{submitted['id']}")
    status = target.call("GET", f"/status/{submitted['id']}")
    return StepResult(
        {
            "keys of /run": sorted(submitted),
            "keys of /stream": sorted(report),
            "keys of a chunk": sorted(chunks[0]) if chunks else [],
            "tokens of the chunks": tokens,
            "chunks are returned again": bool(again.get("stream")),
            "yields in /status": len(read_outputs(status)),
            "status": status.get("status"),
        },
        {"polls": polls},
    )


def read_whole_job(target: EndpointTarget) -> StepResult:
    """Read the status and the stream of a job whose answer is one yield."""
    job_id = target.submit(target.short_input(8))
    report = target.wait_for(job_id, ENDED_STATUSES, 120)
    stream = target.call("GET", f"/stream/{job_id}")
    return StepResult(
        {
            "yields in /status": len(read_outputs(report)),
            "chunks in /stream": len(stream.get("stream") or []),
            "status in /stream": stream.get("status"),
        }
    )


def read_health(target: EndpointTarget) -> StepResult:
    health = target.api.get_health(target.id)
    return StepResult(
        {"jobs": sorted(health.get("jobs", {})), "workers": sorted(health.get("workers", {}))}
    )


def _media_type(response: httpx2.Response | Any) -> str:
    return str(response.headers.get("content-type", "none")).partition(";")[0]


def send_other_methods(target: EndpointTarget) -> StepResult:
    """Send methods for which a job has no field: the worker may mistake them for a POST."""
    results = {}
    for method, path, body in (
        ("DELETE", "/v1/files/file-none", None),
        ("PUT", "/v1/files/file-none", {}),
        ("HEAD", "/v1/models", None),
        ("GET", "/v1/no-such-route", None),
        ("POST", "/v1/no-such-route", {}),
    ):
        response = target.http.request(method, f"/openai{path}", json=body)
        results[f"{method} {path}"] = describe_response(response)
    return StepResult(results)


def send_form(target: EndpointTarget) -> StepResult:
    response = target.http.post(
        "/openai/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "batch"}
    )
    return StepResult({"multipart form": describe_response(response)})


def send_query(target: EndpointTarget) -> StepResult:
    """Send a query that the worker refuses: without the query, the response is the same as plain.

    A list of batches has no limit of 0.
    """
    plain = describe_response(target.http.get("/openai/v1/batches"))
    wrong = describe_response(target.http.get("/openai/v1/batches?limit=0"))
    return StepResult({"the query reaches the worker": plain != wrong}, {"response": wrong})


def fail_job(target: EndpointTarget) -> StepResult:
    """Fail a job because of an unknown model, at the gateway and with /runsync; retry it."""
    body = target.chat_body(model="no-such-model")
    plain = target.http.post(_CHAT, json=body)
    stream = target.http.post(_CHAT, json=body | {"stream": True})
    job = {"openai_route": "/v1/chat/completions", "openai_input": body}
    report = target.call("POST", "/runsync", {"input": job})
    job_id = target.submit(job)
    target.wait_for(job_id, ENDED_STATUSES, 60)
    retry = target.http.post(f"/retry/{job_id}")
    return StepResult(
        {
            "gateway": describe_response(plain),
            "gateway, streamed": describe_response(stream),
            "keys of /runsync": sorted(report),
            "status": report.get("status"),
            "type of the error": type(report.get("error")).__name__,
            "error": describe_error(report.get("error")),
            "retry": retry.status_code,
        }
    )


def send_oversize(target: EndpointTarget) -> StepResult:
    """Send bodies above the documented limits: 10 MB for /run, 20 MB for synchronous requests."""
    results = {}
    for path, megabytes in (("/run", 10), ("/runsync", 20), ("/openai/v1/completions", 20)):
        text = "a" * (megabytes * 1_000_000 + 200_000)
        fields = {"model": target.model, "max_tokens": 1, "prompt": text}
        body = fields if path.startswith("/openai") else {"input": {"prompt": text}}
        name = f"{megabytes}.2 MB to {path}"
        try:
            response = target.http.post(path, json=body)
        except httpx2.HTTPError:
            # The platform may close the connection before it has read the body.
            results[name] = "no response"
            continue
        results[name] = describe_response(response)
        if path == "/run" and response.is_success:
            target.cancel(response.json()["id"])
    return StepResult(results)


def hang_up(target: EndpointTarget) -> StepResult:
    """Close the connection of a streamed chat after its first event; read its job's status."""
    long = target.long_input()["sampling_params"]
    body = target.chat_body(**long, temperature=1, stream=True)
    job_id = None
    with target.http.stream("POST", _CHAT, json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                job_id = json.loads(line.removeprefix("data: "))["id"].partition("-")[2]
                break
    start = time.monotonic()
    if not target.knows_job(str(job_id)):
        return StepResult({"job": "not known by the id in the response's id"})
    report = target.wait_for(str(job_id), ENDED_STATUSES, 10)
    seconds = round(time.monotonic() - start, 1)
    target.cancel(str(job_id))
    return StepResult({"job": report["status"]}, {"seconds": seconds})


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
    response = target.http.post(_CHAT, json=target.chat_body())
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
    running = target.wait_for(job_id, _RUNNING, 60)
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
    body = {
        "model": target.model,
        "prompt": "Once upon a time",
        "max_tokens": _BATCH_TOKENS,
        "ignore_eos": True,
    }
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    lines = ({"custom_id": str(number), **line} for number in range(_BATCH_LINES))
    content = "".join(json.dumps(each) + "\n" for each in lines)
    upload = {"purpose": "batch", "filename": "proof.jsonl", "content": content}
    file_id = _call_route(target, "/v1/files", upload)
    batch = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    job = {"batch": {"id": _call_route(target, "/v1/batches", batch)}}
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
    gateway = target.http.post(_CHAT, json=target.chat_body())
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
