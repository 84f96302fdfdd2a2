"""Sends the requests of LLM Engine's classes to the endpoint, each as a job."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from llm_worker_client import account
from llm_worker_client.llm_engine.data_types import CompletionStreamResponse
from llm_worker_client.llm_engine.errors import BadRequestError, ServerError, error_from_response
from llm_worker_client.transport import AsyncRunpodTransport, RunpodTransport

# Seconds to wait for new output. A worker may have to start first.
TIMEOUT_S = 300
# The worker responds in LLM Engine's format to requests that have basic authorization and accept
# JSON. Jobs do not carry the authorization, and no request is sent to the base URL.
_CLIENT_OPTIONS: dict[str, Any] = {
    "auth": ("", ""),
    "base_url": "http://endpoint",
    "headers": {"accept": "application/json"},
}


class _LoopClient:
    """The HTTP client of one event loop, which reuses connections between calls.

    For each call, use ``async with``. The loop's end or garbage collection closes the client.
    """

    def __init__(self, transport: AsyncRunpodTransport) -> None:
        self._transport = transport
        self._client = httpx2.AsyncClient(transport=transport, **_CLIENT_OPTIONS)
        self._closer = _close_at_loop_end(self._client)

    async def register_closer(self) -> None:
        await anext(self._closer)

    async def __aenter__(self) -> httpx2.AsyncClient:
        return self._client

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is not None:
            # Wait until the abandoned job is cancelled, since the loop may end after this call.
            await self._transport.endpoint.wait_for_cancellations()


async def _close_at_loop_end(client: httpx2.AsyncClient) -> AsyncGenerator[None]:
    """Close a client when its event loop ends: the loop then closes its async generators."""
    try:
        yield
    finally:
        await client.aclose()


@dataclass
class Connection:
    """The endpoint that LLM Engine's classes call, with the options of ``configure``."""

    endpoint_id: str | None = None
    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    api_url: str | None = None
    image: str | None = None
    _client: httpx2.Client | None = None
    _loop_clients: dict[asyncio.AbstractEventLoop, _LoopClient] = field(default_factory=dict)

    @property
    def client(self) -> httpx2.Client:
        if self._client is None:
            transport = RunpodTransport(*self._transport_arguments())
            self._client = httpx2.Client(transport=transport, **_CLIENT_OPTIONS)
        return self._client

    async def loop_client(self) -> _LoopClient:
        loop = asyncio.get_running_loop()
        if loop not in self._loop_clients:
            clients = self._loop_clients.items()
            self._loop_clients = {key: each for key, each in clients if not key.is_closed()}
            client = _LoopClient(AsyncRunpodTransport(*self._transport_arguments()))
            await client.register_closer()
            self._loop_clients[loop] = client
        return self._loop_clients[loop]

    def configure(self, **options: str | None) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        # Event loops close the clients that are dropped here.
        self._loop_clients = {}
        for name, value in options.items():
            setattr(self, name, value)

    def _transport_arguments(self) -> tuple[str, str | None, str | None]:
        if endpoint_id := self.endpoint_id or account.endpoint_id():
            return endpoint_id, self.api_key, self.base_url
        variable = account.ENDPOINT_VARIABLE
        raise BadRequestError(
            f"There is no endpoint: set {variable}, or call configure(endpoint_id=…)."
        )


CONNECTION = Connection()


def configure(
    endpoint_id: str | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    *,
    api_url: str | None = None,
    image: str | None = None,
) -> None:
    """Set the endpoint that LLM Engine's classes call from now on.

    Args:
        endpoint_id: The id of the endpoint. Default: RUNPOD_ENDPOINT_ID.
        api_key: The key of the account. Default: RUNPOD_API_KEY, or ~/.runpod/config.toml.
        base_url: The URL of the platform's queues. Default: RunPod's.
        api_url: The URL of the platform's REST API, which creates endpoints. Default: RunPod's.
        image: The worker's image without a tag, for ``Model.create``.
    """
    CONNECTION.configure(
        endpoint_id=endpoint_id, api_key=api_key, base_url=base_url, api_url=api_url, image=image
    )


def refuse_request_headers(request_headers: dict[str, str] | None) -> None:
    if request_headers:
        raise BadRequestError("request_headers: a job has no headers")


def call(
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    files: Any = None,
) -> Any:
    """Send a request and return the JSON of the response; None values of ``body`` are left out.

    Raise LLM Engine's error for the status of the response, or ``TimeoutError`` if nothing arrives
    for ``timeout_s`` seconds.
    """
    with _translate_http_errors():
        options = {"json": _drop_none(body), "files": files, "timeout": timeout_s}
        return _read_json(CONNECTION.client.request(method, path, **options))


async def acall(path: str, body: Mapping[str, Any], timeout_s: float) -> Any:
    """Send a POST request as ``call`` does, with asyncio."""
    with _translate_http_errors():
        async with await CONNECTION.loop_client() as client:
            return _read_json(await client.post(path, json=_drop_none(body), timeout=timeout_s))


def stream_events(
    path: str, body: Mapping[str, Any], timeout_s: float
) -> Iterator[CompletionStreamResponse]:
    """Yield the events of a stream; the job is cancelled if the caller stops before the last event.

    Errors are those of ``call``; after the first event, an event with ``error`` reports an error.
    """
    options: Any = {"method": "POST", "json": _drop_none(body), "timeout": timeout_s}
    with _translate_http_errors(), CONNECTION.client.sse(path, **options) as events:
        if events.response.status_code != 200:
            events.response.read()
            _read_json(events.response)
        for event in events:
            yield CompletionStreamResponse.model_validate_json(event.data)


async def astream_events(
    path: str, body: Mapping[str, Any], timeout_s: float
) -> AsyncGenerator[CompletionStreamResponse]:
    """Yield the events of a stream as ``stream_events`` does, with asyncio."""
    with _translate_http_errors():
        async with await CONNECTION.loop_client() as client:
            # client.sse is unsuitable: a loop that ends would close its generator before this one.
            request = client.build_request("POST", path, json=_drop_none(body), timeout=timeout_s)
            response = await client.send(request, stream=True)
            try:
                if response.status_code != 200:
                    await response.aread()
                    _read_json(response)
                async for event in httpx2.EventSource(response):
                    yield CompletionStreamResponse.model_validate_json(event.data)
            finally:
                await response.aclose()


def _drop_none(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if body is None:
        return None
    return {name: value for name, value in body.items() if value is not None}


def _read_json(response: httpx2.Response) -> Any:
    if response.status_code != 200:
        raise error_from_response(response.status_code, response.content)
    return response.json()


@contextmanager
def _translate_http_errors() -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException:
        raise TimeoutError("Nothing has come from the endpoint in time.") from None
    except httpx2.TransportError as error:
        raise ServerError(502, str(error)) from None
