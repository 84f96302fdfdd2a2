"""Compares a worker's answers with those of vLLM's own server, by their statuses.

``differences.yaml`` has the kinds of requests that only one of them refuses, each with its reason.
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from support.traffic.store import Request

TABLE = Path(__file__).with_name("differences.yaml")
# Keys with the maximum number of tokens, and the value that comparisons use.
COUNT_KEYS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/llm/completions-sync": ("max_new_tokens",),
    "/v1/llm/completions-stream": ("max_new_tokens",),
}
TOKENS = 2
# The lowest budget for reasoning in Anthropic's API.
MIN_BUDGET = 1_024
TIMEOUT_S = 300.0
# Requests in flight; more would be refused because the worker is full.
CONCURRENCY = 4
# Parts of messages that differ between requests of a kind: numbers, names, ids.
VARIABLE = re.compile(
    r"(?<=vllm_xargs\.)[^:]*(?=:)|'[^']*'|\"[^\"]*\"|[0-9a-f]{8}-[0-9a-f-]{27}|\d[\d,.]*"
)
# A place and a message in vLLM's list of all errors of a body.
INVALID = re.compile(r"""'loc': '([^']*)', 'msg': (?:'([^']*)'|"([^"]*)")""")
ACCEPTED, REFUSED, FAILED, BUSY = "accepted", "refused", "failed", "busy"


@dataclass(frozen=True)
class Outcome:
    """The status of a response, or of the error in its stream, and the error's message.

    The status is None without a response.
    """

    status: int | None
    message: str = ""

    @property
    def kind(self) -> str:
        if self.status in (429, 503):
            return BUSY
        if self.status is None or self.status >= 500:
            return FAILED
        return REFUSED if self.status >= 400 else ACCEPTED

    @property
    def pattern(self) -> str:
        """The message without the parts that differ between requests of a kind."""
        return VARIABLE.sub("#", self.message)[:200]


@dataclass(frozen=True)
class Kind:
    """Requests with the same difference: the outcomes of both sides, with their messages."""

    path: str
    vllm: tuple[str, str]
    worker: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.path}: vLLM {' '.join(self.vllm)} | worker {' '.join(self.worker)}"


@dataclass
class Comparison:
    """The compared requests.

    ``accepted`` is the number of those that vLLM accepts, ``names`` has those with a difference.
    """

    count: int = 0
    accepted: int = 0
    names: dict[Kind, list[str]] = field(default_factory=lambda: defaultdict(list))
    examples: dict[Kind, Request] = field(default_factory=dict)

    def add(self, name: str, request: Request, vllm: Outcome, worker: Outcome) -> None:
        self.count += 1
        self.accepted += vllm.kind == ACCEPTED
        if vllm.kind != worker.kind and BUSY not in (vllm.kind, worker.kind):
            path = request.path.split("?")[0]
            kind = Kind(path, (vllm.kind, vllm.pattern), (worker.kind, worker.pattern))
            self.names[kind].append(name)
            self.examples.setdefault(kind, request)

    def find_unexplained(self, rows: Iterable["Row"]) -> dict[Kind, list[str]]:
        return {
            kind: names
            for kind, names in self.names.items()
            if not any(row.explains(kind) for row in rows)
        }


@dataclass(frozen=True)
class Row:
    """A row of the table: a difference, and its reason.

    Args:
        group: The row's group; it names the side that refuses.
        message: Regular expression for the pattern of this side's message.
        reason: The harm that the refusal prevents, or another reason for the difference.
        path: Regular expression for the paths of the routes.
        generated: Whether only generated requests have this difference.
    """

    group: str
    message: str
    reason: str
    path: str = ""
    generated: bool = False

    def explains(self, kind: Kind) -> bool:
        """Return whether a difference has this row's reason."""
        sides = (kind.vllm, kind.worker)
        (outcome, pattern), other = sides if self.group in VLLM_GROUPS else sides[::-1]
        if outcome == ACCEPTED or (outcome == FAILED) != (self.group == "vllm fails"):
            return False
        if self.group != "vllm fails" and other[0] != ACCEPTED:
            return False
        is_found = re.fullmatch(self.message, pattern, re.DOTALL)
        return bool(is_found and re.match(self.path, kind.path))


VLLM_GROUPS = ("vllm refuses", "vllm fails")


def read_rows() -> list[Row]:
    """Return the rows of all groups."""
    groups = yaml.safe_load(TABLE.read_text())
    return [Row(group, **row) for group, rows in groups.items() for row in rows or ()]


Send = Callable[[Request], Awaitable[Outcome]]


def sender(client: httpx.AsyncClient) -> Send:
    """Return a function that sends a request with a client."""

    async def send(request: Request) -> Outcome:
        # Half of a surrogate pair can be sent as an escape only, and NaN as Python writes it.
        data = json.dumps(request.body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            try:
                response = await client.post(request.path, content=data, headers=headers)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                # A server may close an idle connection while it is used again.
                response = await client.post(request.path, content=data, headers=headers)
        except httpx.HTTPError as error:
            return Outcome(None, repr(error))
        return read_outcome(response)

    return send


def read_outcome(response: httpx.Response) -> Outcome:
    """Return the outcome of a response; the error in a stream counts as the response's."""
    if response.is_error:
        return Outcome(response.status_code, error_message(response.text))
    for line in response.text.splitlines():
        if line.startswith("data: {") and (error := json.loads(line[6:]).get("error")):
            code = error.get("code") if isinstance(error, dict) else None
            return Outcome(code if isinstance(code, int) else 400, error_message(line[6:]))
    return Outcome(response.status_code)


def error_message(text: str) -> str:
    """Return the message in an error's body; of several mistakes, the one at the deepest place."""
    if mistakes := INVALID.findall(text.replace('\\"', '"')):
        place, *messages = max(mistakes, key=lambda mistake: mistake[0].count("."))
        return f"{place}: {''.join(messages)}"
    try:
        body = json.loads(text)
    except ValueError:
        return text
    error = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)


def shorten_answer(request: Request) -> Request:
    """Return a request for an answer of a few tokens."""
    path, body = request.path.split("?")[0], dict(request.body)
    keys = COUNT_KEYS.get(path, ())
    body |= {key: TOKENS for key in keys[:1] if not any(key in body for key in keys)}
    body |= {key: TOKENS for key in keys if key in body}
    thinking: Any = body.get("thinking")
    if isinstance(thinking, dict) and "budget_tokens" in thinking and keys:
        # The budget must be lower than the maximum. Most texts soon have one of these letters.
        body["thinking"] = {**thinking, "budget_tokens": MIN_BUDGET}
        body |= {keys[0]: MIN_BUDGET + 1, "stop_sequences": ["e", "a", "o", "l"]}
    return Request(request.path, body)


def route_of_raw_job(request: Request) -> Request:
    """Return the request to a route with the same content as a raw job; others unchanged."""
    job = request.body.get("input")
    if not isinstance(job, dict):
        return request
    body = {key: value for key, value in job.items() if key != "sampling_params"}
    body |= {"model": "demo", **job.get("sampling_params", {})}
    path = "/v1/chat/completions" if "messages" in job else "/v1/completions"
    return shorten_answer(Request(path, body))


async def compare(
    requests: Iterable[tuple[str, Request]], vllm: Send, worker: Send, comparison: Comparison
) -> None:
    """Send requests, which have names, to both sides."""
    waiting = iter(requests)

    async def send_next() -> None:
        for name, request in waiting:
            short = shorten_answer(request)
            outcomes = await asyncio.gather(vllm(route_of_raw_job(short)), worker(short))
            comparison.add(name, short, *outcomes)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(send_next())
