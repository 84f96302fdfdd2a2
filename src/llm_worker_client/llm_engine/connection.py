"""How LLM Engine's classes reach the endpoint: over a transport, whose every request is a job."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from llm_worker_client import account
from llm_worker_client.llm_engine.data_types import CompletionStreamResponse
from llm_worker_client.llm_engine.errors import BadRequestError, ServerError, error_in
from llm_worker_client.transport import AsyncRunpodTransport, RunpodTransport

# Seconds without anything new that a call waits: a worker may have to start first.
TIMEOUT_S = 300
# Basic authorization and JSON say that LLM Engine's answers and errors are wanted. No job carries
# the authorization, and no request goes to this address.
_OPTIONS: dict[str, Any] = {
    "auth": ("", ""),
    "base_url": "http://endpoint",
    "headers": {"accept": "application/json"},
}


class _LoopClient:
    """The client of one event loop, which shares its connections from call to call.

    ``async with`` it for each call. It is closed when the loop ends, or when nobody refers to it.
    """

    def __init__(self, transport: AsyncRunpodTransport) -> None:
        self._transport = transport
        self._client = httpx2.AsyncClient(transport=transport, **_OPTIONS)
        self._life = _life(self._client)

    async def begin(self) -> None:
        await anext(self._life)

    async def __aenter__(self) -> httpx2.AsyncClient:
        return self._client

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # The job that was given up is cancelled before the loop may end.
            await self._transport.endpoint.settled()


async def _life(client: httpx2.AsyncClient) -> AsyncGenerator[None]:
    """Close a client when the event loop ends, which ends its generators."""
    try:
        yield
    finally:
        await client.aclose()


@dataclass
class Connection:
    """Which endpoint is called, with whose key: see ``configure``."""

    endpoint_id: str | None = None
    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    api_url: str | None = None
    image: str | None = None
    _client: httpx2.Client | None = None
    _loops: dict[asyncio.AbstractEventLoop, _LoopClient] = field(default_factory=dict)

    @property
    def client(self) -> httpx2.Client:
        if self._client is None:
            self._client = httpx2.Client(transport=RunpodTransport(*self._named()), **_OPTIONS)
        return self._client

    async def loop_client(self) -> _LoopClient:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops = {one: its for one, its in self._loops.items() if not one.is_closed()}
            client = _LoopClient(AsyncRunpodTransport(*self._named()))
            await client.begin()
            self._loops[loop] = client
        return self._loops[loop]

    def set(self, **given: str | None) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        # Event loops close what is dropped here.
        self._loops = {}
        for name, value in given.items():
            setattr(self, name, value)

    def _named(self) -> tuple[str, str | None, str | None]:
        if found := self.endpoint_id or account.endpoint_id():
            return found, self.api_key, self.base_url
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


def call(
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    files: Any = None,
) -> Any:
    """Return the JSON that answers a request.

    Args:
        method: of HTTP.
        path: with the query string, escaped.
        body: sent as JSON without its values that are None.
        timeout_s: seconds without anything new that the call waits.
        files: of a form, as httpx2 takes them.

    Raises:
        BadRequestError, UnauthorizedError, NotFoundError, RateLimitExceededError, ServerError:
            as the answer says.
        TimeoutError: nothing has come in time.
    """
    with _failures():
        asked = {"json": _given(body), "files": files, "timeout": timeout_s}
        return _read(CONNECTION.client.request(method, path, **asked))


async def acall(path: str, body: Mapping[str, Any], timeout_s: float) -> Any:
    """As ``call`` with POST, with asyncio."""
    with _failures():
        async with await CONNECTION.loop_client() as client:
            return _read(await client.post(path, json=_given(body), timeout=timeout_s))


def stream(
    path: str, body: Mapping[str, Any], timeout_s: float
) -> Iterator[CompletionStreamResponse]:
    """Yield each event; the job is cancelled if the caller stops before the last.

    Raises:
        The errors of ``call``, unless the stream has begun.
    """
    asked: Any = {"method": "POST", "json": _given(body), "timeout": timeout_s}
    with _failures(), CONNECTION.client.sse(path, **asked) as events:
        if events.response.status_code != 200:
            events.response.read()
            _read(events.response)
        for event in events:
            yield CompletionStreamResponse.model_validate_json(event.data)


async def astream(
    path: str, body: Mapping[str, Any], timeout_s: float
) -> AsyncGenerator[CompletionStreamResponse]:
    """As ``stream``, with asyncio."""
    with _failures():
        async with await CONNECTION.loop_client() as client:
            # Not client.sse: an event loop that ends would close its generator before this one.
            request = client.build_request("POST", path, json=_given(body), timeout=timeout_s)
            response = await client.send(request, stream=True)
            try:
                if response.status_code != 200:
                    await response.aread()
                    _read(response)
                async for event in httpx2.EventSource(response):
                    yield CompletionStreamResponse.model_validate_json(event.data)
            finally:
                await response.aclose()


def _given(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if body is None:
        return None
    return {name: value for name, value in body.items() if value is not None}


def _read(answer: httpx2.Response) -> Any:
    if answer.status_code != 200:
        raise error_in(answer.status_code, answer.content)
    return answer.json()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException:
        raise TimeoutError("Nothing has come from the endpoint in time.") from None
    except httpx2.TransportError as lost:
        raise ServerError(502, str(lost)) from None
