"""Requests of the client step by step, against a platform that answers what is written down."""

import json
from dataclasses import dataclass, field
from typing import Any

from llm_worker_client.exchange import Exchange
from llm_worker_client.mapping import Request
from llm_worker_client.steps import Ask, Head, NotStored, Pause, Reply, Store, Unreachable

LOST = Unreachable("reset", sent=True)
UNSENT = Unreachable("refused", sent=False)


def report(status: str = "IN_PROGRESS", code: int = 200, **more: Any) -> Reply:
    return Reply(code, json.dumps({"id": "j", "status": status, **more}).encode())


def stream(*outputs: Any, status: str = "IN_PROGRESS", **more: Any) -> Reply:
    return report(status, stream=[{"output": output} for output in outputs], **more)


def failed(code: int) -> str:
    error = {"message": "no", "type": "T", "code": code, "retryable": code >= 500}
    return json.dumps({"error": error})


@dataclass
class Answered:
    """What a caller was answered, and what the platform was asked."""

    asked: list[Ask] = field(default_factory=list)
    paused: list[float] = field(default_factory=list)
    stored: list[Store] = field(default_factory=list)
    head: Head = field(default_factory=lambda: Head(0))
    body: bytes = b""

    @property
    def paths(self) -> list[str]:
        return [ask.path for ask in self.asked]

    def sent(self, index: int = 0) -> Any:
        return json.loads(self.asked[index].content or b"null")


def answered(exchange: Exchange, *replies: Reply | Unreachable | str | NotStored) -> Answered:
    """Take all steps, with these answers of the platform and of the volume: all are asked for."""
    left = iter(replies)
    steps, found = exchange.steps(), Answered()
    step = next(steps, None)
    while step is not None:
        reply: Any = None
        if isinstance(step, Ask):
            found.asked.append(step)
            reply = next(left)
        elif isinstance(step, Store):
            found.stored.append(step)
            reply = next(left)
        elif isinstance(step, Pause):
            found.paused.append(step.seconds)
        elif isinstance(step, Head):
            found.head = step
        else:
            found.body += step
        try:
            broken = isinstance(reply, Exception)
            step = steps.throw(reply) if broken else steps.send(reply)
        except StopIteration:
            step = None
    assert next(left, None) is None
    return found


def exchange(method: str, target: str, body: Any = None, **of: Any) -> Exchange:
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **of.pop("headers", {})}
    return Exchange(Request(method, target, headers, content), "abc", **of)
