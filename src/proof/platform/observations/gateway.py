"""Requests that the gateway may treat in several ways: methods, forms, queries, sizes, failures."""

import json
import time

import httpx2

from llm_worker_client.jobs import ENDED_STATUSES
from proof.platform.observations import StepResult
from proof.platform.target import EndpointTarget, describe_error, describe_response

_CHAT = "/openai/v1/chat/completions"
_MEGABYTE = 1_000_000


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
        text = "a" * (megabytes * _MEGABYTE + 200_000)
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
