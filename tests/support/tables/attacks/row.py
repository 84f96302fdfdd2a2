"""A hostile request, and the helpers that its builders share."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Stands in a request for a word that is new each time it is sent: no cache knows the request then,
# and the word is looked for in the log.
CANARY = "canary-7f3a"

# Stands for the port of a server on loopback that nobody may call.
PORT = "CANARYPORT"

HELLO = [{"role": "user", "content": "Hi"}]


class Expected(StrEnum):
    """How a request may end."""

    REFUSED = "refused"  # a status of 4xx
    ANSWERED = "answered"  # 200
    EITHER = "either"  # honest whichever it is


REFUSED, ANSWERED, EITHER = Expected


@dataclass(frozen=True)
class Attack:
    """One row."""

    name: str
    # What is sent: a job's input, its JSON as bytes, or an `Http` request.
    build: Callable[[], Any]
    expected: Expected = REFUSED
    # Whether it did harm once.
    harmful: bool = False
    # How often it is sent at once.
    times: int = 1
    # How much of the slow ones is enough on a busy machine: seconds after which it has failed.
    limit_s: float = 60.0


@dataclass(frozen=True)
class Http:
    """A request for the HTTP server."""

    method: str = "POST"
    path: str = "/v1/completions"
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    # The caller hangs up after so many seconds; 0: it does not.
    patience_s: float = 0

    @property
    def all_headers(self) -> dict[str, str]:
        defaults = {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Content-Length": str(len(self.body)),
        }
        return {**defaults, **self.headers}


Body = dict[str, Any]


def raw(**keys: Any) -> Body:
    return {"prompt": "Hi", "sampling_params": {"max_tokens": 4}, **keys}


def params(**sampling: Any) -> Body:
    """Return a raw job with sampling parameters."""
    return {"prompt": "Hi", "sampling_params": {"max_tokens": 4, **sampling}}


def route(path: str, **body: Any) -> Body:
    return {"route": path, "method": "POST", "body": body}


def chat(**body: Any) -> Body:
    return route("/v1/chat/completions", **{"messages": HELLO, "max_tokens": 4, **body})


def completion(**body: Any) -> Body:
    return route("/v1/completions", **{"prompt": "Hi", "max_tokens": 4, **body})


def responses(**body: Any) -> Body:
    return route("/v1/responses", **{"input": "Hi", "max_output_tokens": 4, **body})


def anthropic(**body: Any) -> Body:
    return route("/v1/messages", **{"messages": HELLO, "max_tokens": 4, **body})


def count_tokens(**body: Any) -> Body:
    return route("/v1/messages/count_tokens", **{"messages": HELLO, **body})


def tokenize(**body: Any) -> Body:
    return route("/tokenize", **body)


def detokenize(**body: Any) -> Body:
    return route("/detokenize", **body)


def engine(**keys: Any) -> Body:
    """Return a job in the form of LLM Engine."""
    return {"format": "llm_engine", "prompt": "Hi", "max_new_tokens": 4, **keys}


def gateway(path: str, **body: Any) -> Body:
    """Return a request as the platform's gateway hands it on."""
    return {"openai_route": path, "openai_input": body}


def http(path: str, **body: Any) -> Http:
    return Http(path=path, body=json.dumps(body).encode())


def user(content: Any, **keys: Any) -> list[Body]:
    return [{"role": "user", "content": content, **keys}]


def nested(depth: int, opening: str = '{"a":', closing: str = "}", inner: str = "1") -> str:
    """Return JSON that no encoder would write: it would recurse too deeply."""
    return opening * depth + inner + closing * depth
