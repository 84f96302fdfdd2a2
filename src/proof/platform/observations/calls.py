"""The calls of docs/guide.md: models, chats, completions, and jobs in the raw form."""

import time
from typing import Any

import httpx2

from llm_worker_client.jobs import ENDED_STATUSES, read_outputs
from proof.platform.observations import StepResult
from proof.platform.target import POLL_S, EndpointTarget, Json

_DONE = b"data: [DONE]"
# Tokens of a job that streams, whose chunks have 1, 3, 9, 27 and the rest of the tokens.
_STREAM_TOKENS = 50


def list_models(target: EndpointTarget) -> StepResult:
    answer = target.openai.models.with_raw_response.list()
    names = [model.id for model in answer.parse().data]
    return StepResult(
        {"status": answer.http_response.status_code, "lists the model": target.model in names}
    )


def chat(target: EndpointTarget) -> StepResult:
    return _complete(target, "chat.completion", "/openai/v1/chat/completions", target.chat_body())


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
    with target.http.stream("POST", "/openai/v1/chat/completions", json=body) as response:
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
        {name: report.get(name) for name in ("delayTime", "executionTime")},
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
    again = target.call("GET", f"/stream/{submitted['id']}")
    status = target.call("GET", f"/status/{submitted['id']}")
    return StepResult(
        {
            "keys of /run": sorted(submitted),
            "keys of /stream": sorted(report),
            "keys of a chunk": sorted(chunks[0]) if chunks else [],
            "tokens of the chunks": [_count_tokens(chunk["output"]) for chunk in chunks],
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


def _count_tokens(output: Json) -> int:
    return len(output["choices"][0]["tokens"])


def _media_type(response: httpx2.Response | Any) -> str:
    return str(response.headers.get("content-type", "none")).partition(";")[0]
