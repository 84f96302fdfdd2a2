"""How LLM Engine's classes reach the endpoint: each call is a job, whose answer is JSON."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_worker_client import account
from llm_worker_client.endpoint import AsyncEndpoint, Endpoint
from llm_worker_client.llm_engine.errors import BadRequestError, ServerError, error_in
from llm_worker_client.llm_engine.loops import Kept, Loops
from llm_worker_client.mapping import Request
from llm_worker_client.mapping.forms import MEDIA_TYPE, Form
from llm_worker_client.steps import TookTooLong, Unreachable

# Seconds without anything new that a call waits: a worker may have to start first.
TIMEOUT_S = 300
# Basic authorization tells the mapping that LLM Engine's answers and errors are wanted. No job
# carries it.
_HEADERS = {"accept": "application/json", "authorization": "Basic"}


@dataclass
class Connection:
    """Which endpoint is called, with whose key.

    Attributes:
        endpoint_id: None: that in RUNPOD_ENDPOINT_ID.
        api_key: of the account; None: RUNPOD_API_KEY's, or that of the platform's own file.
        base_url: of the platform's queues; None: RunPod's.
        api_url: of the platform's REST API; None: RunPod's.
        image: the worker's, without a tag, for endpoints that are created.
    """

    endpoint_id: str | None = None
    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    api_url: str | None = None
    image: str | None = None
    _kept: Endpoint | None = None
    _loops: Loops = field(init=False)

    def __post_init__(self) -> None:
        self._loops = Loops(self._async_endpoint)

    @property
    def endpoint(self) -> Endpoint:
        if self._kept is None:
            self._kept = Endpoint(self._id(), self.api_key, self.base_url)
        return self._kept

    async def async_endpoint(self) -> Kept:
        """Return the endpoint of the running event loop, for a call with asyncio."""
        return await self._loops.kept()

    def set(self, **given: str | None) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        # Event loops close what is dropped here.
        self._loops = Loops(self._async_endpoint)
        for name, value in given.items():
            setattr(self, name, value)

    def _async_endpoint(self) -> AsyncEndpoint:
        return AsyncEndpoint(self._id(), self.api_key, self.base_url)

    def _id(self) -> str:
        if found := self.endpoint_id or account.endpoint_id():
            return found
        message = f"There is no endpoint: set {account.ENDPOINT}, or call configure(endpoint_id=…)."
        raise BadRequestError(message)


CONNECTION = Connection()


def configure(
    endpoint_id: str | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    *,
    api_url: str | None = None,
    image: str | None = None,
) -> None:
    """Say which endpoint the classes call from now on.

    Args:
        endpoint_id: None: that in RUNPOD_ENDPOINT_ID.
        api_key: of the account; None: RUNPOD_API_KEY's, or that of the platform's own file.
        base_url: of the platform's queues; None: RunPod's.
        api_url: of the platform's REST API, which makes endpoints; None: RunPod's.
        image: the worker's, without a tag, for ``Model.create``.
    """
    CONNECTION.set(
        endpoint_id=endpoint_id, api_key=api_key, base_url=base_url, api_url=api_url, image=image
    )


def refuse_headers(request_headers: dict[str, str] | None) -> None:
    """Refuse headers of a caller: a job has none.

    Raises:
        BadRequestError: there are some.
    """
    if request_headers:
        raise BadRequestError("request_headers: a job has no headers")


def post(path: str, body: dict[str, Any]) -> Request:
    """Return a request with those values of a body that are not None."""
    given = {name: value for name, value in body.items() if value is not None}
    headers = {**_HEADERS, "content-type": "application/json"}
    return Request("POST", path, headers, json.dumps(given).encode())


def bare(method: str, path: str, request_headers: dict[str, str] | None = None) -> Request:
    """Return a request without a body."""
    refuse_headers(request_headers)
    return Request(method, path, _HEADERS)


def form(path: str, content: Form) -> Request:
    """Return a request with a form."""
    return Request("POST", path, {**_HEADERS, "content-type": MEDIA_TYPE}, form=content)


def call(request: Request, timeout_s: float = TIMEOUT_S) -> Any:
    """Return the JSON that answers a request.

    Raises:
        BadRequestError, UnauthorizedError, NotFoundError, RateLimitExceededError, ServerError:
            as the answer says.
        TimeoutError: nothing has come for as long as the caller waits.
    """
    with _failures():
        answer = CONNECTION.endpoint.answer(request, timeout_s)
        try:
            content = b"".join(answer.parts())
        finally:
            answer.close()
    return _read(answer.head.status, content)


async def acall(request: Request, timeout_s: float = TIMEOUT_S) -> Any:
    """As ``call``, with asyncio."""
    with _failures():
        async with await CONNECTION.async_endpoint() as endpoint:
            answer = await endpoint.answer(request, timeout_s)
            try:
                content = b"".join([part async for part in answer.parts()])
            finally:
                answer.leave()
    return _read(answer.head.status, content)


def stream(request: Request, timeout_s: float) -> Iterator[Any]:
    """Yield the data of each event; the job is cancelled if the caller stops before the last.

    Raises:
        The errors of ``call``, unless the stream has begun.
    """
    with _failures():
        answer = CONNECTION.endpoint.answer(request, timeout_s)
        events = _Events(answer.head.status)
        try:
            for part in answer.parts():
                yield from events.read(part)
        finally:
            answer.close()
        events.end()


async def astream(request: Request, timeout_s: float) -> AsyncGenerator[Any]:
    """As ``stream``, with asyncio."""
    with _failures():
        async with await CONNECTION.async_endpoint() as endpoint:
            answer = await endpoint.answer(request, timeout_s)
            events = _Events(answer.head.status)
            try:
                async for part in answer.parts():
                    for event in events.read(part):
                        yield event
            finally:
                answer.leave()
        events.end()


class _Events:
    """Takes the data out of a stream's parts, which may end within an event."""

    def __init__(self, status: int) -> None:
        self._status = status
        self._rest = b""

    def read(self, part: bytes) -> Iterator[Any]:
        self._rest += part
        if self._status != 200:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield json.loads(line.removeprefix(b"data:"))

    def end(self) -> None:
        """Raise the error that the answer is, if it is no stream."""
        if self._status != 200:
            raise error_in(self._status, self._rest)


def _read(status: int, content: bytes) -> Any:
    if status != 200:
        raise error_in(status, content)
    return json.loads(content)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except TookTooLong:
        raise TimeoutError("Nothing has come from the endpoint in time.") from None
    except Unreachable as lost:
        raise ServerError(502, str(lost)) from None
