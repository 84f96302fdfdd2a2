"""Exchanges of the client, step by step, with a platform that sends predefined replies."""

import json
from dataclasses import dataclass, field
from typing import Any

from llm_worker_client.exchange import Exchange
from llm_worker_client.mapping.requests import Request
from llm_worker_client.steps import (
    FileNotStored,
    Pause,
    PlatformReply,
    PlatformRequest,
    PlatformUnreachable,
    ResponseHead,
    StoreFile,
)

LOST = PlatformUnreachable("reset", may_have_arrived=True)
UNSENT = PlatformUnreachable("refused", may_have_arrived=False)


def status_reply(status: str = "IN_PROGRESS", code: int = 200, **more: Any) -> PlatformReply:
    return PlatformReply(code, json.dumps({"id": "j", "status": status, **more}).encode())


def stream_reply(*outputs: Any, status: str = "IN_PROGRESS", **more: Any) -> PlatformReply:
    return status_reply(status, stream=[{"output": output} for output in outputs], **more)


def error_body(code: int) -> str:
    error = {"message": "no", "type": "T", "code": code, "retryable": code >= 500}
    return json.dumps({"error": error})


@dataclass
class ExchangeResult:
    """The response to a caller, and the client's requests to the platform and the volume."""

    requests: list[PlatformRequest] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    stored_files: list[StoreFile] = field(default_factory=list)
    head: ResponseHead = field(default_factory=lambda: ResponseHead(0))
    parts: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def request_body(self, index: int = 0) -> Any:
        return json.loads(self.requests[index].content or b"null")


def run_exchange(
    exchange: Exchange, *replies: PlatformReply | PlatformUnreachable | str | FileNotStored
) -> ExchangeResult:
    """Take all steps of an exchange with these replies of the platform and the volume, in order.

    All replies must be used.
    """
    remaining = iter(replies)
    steps, result = exchange.steps(), ExchangeResult()
    step = next(steps, None)
    while step is not None:
        reply: Any = None
        if isinstance(step, PlatformRequest):
            result.requests.append(step)
            reply = next(remaining)
        elif isinstance(step, StoreFile):
            result.stored_files.append(step)
            reply = next(remaining)
        elif isinstance(step, Pause):
            result.pauses.append(step.seconds)
        elif isinstance(step, ResponseHead):
            result.head = step
        else:
            result.parts.append(step)
        try:
            broken = isinstance(reply, Exception)
            step = steps.throw(reply) if broken else steps.send(reply)
        except StopIteration:
            step = None
    assert next(remaining, None) is None
    return result


def exchange(method: str, target: str, body: Any = None, **options: Any) -> Exchange:
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    return Exchange(Request(method, target, headers, content), "abc", **options)
