"""Transports for `openai` and other httpx clients, which turn requests into jobs of an endpoint.

Each transport works with `httpx2` (for new clients) and with `httpx` (for older clients).
"""

import functools
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import httpx2

from llm_worker_client.endpoint import Answer, AsyncAnswer, AsyncEndpoint, Endpoint
from llm_worker_client.mapping import forms, responses
from llm_worker_client.mapping.requests import Request, find_dialect, is_upload
from llm_worker_client.mapping.responses import Dialect, Refusal
from llm_worker_client.steps import PlatformUnreachable, ReadTimedOut

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport as AsyncHttpxTransport
    from httpx import BaseTransport as HttpxTransport

    from llm_worker_client.volume import Volume
else:
    # Only type checkers need the base classes of httpx, which may not be installed.
    HttpxTransport = AsyncHttpxTransport = object


class RunpodTransport(httpx2.BaseTransport, HttpxTransport):
    """A transport that answers requests of a client by running jobs on an endpoint.

    Use it as ``openai.OpenAI(http_client=httpx2.Client(transport=RunpodTransport("<endpoint>")))``.
    The host in the client's base URL and the client's API key are ignored.

    Args:
        endpoint_id: Id of the deployed endpoint.
        api_key: API key of the account; by default from RUNPOD_API_KEY or ~/.runpod/config.toml.
        base_url: Base URL of the platform's API; RUNPOD_ENDPOINT_BASE_URL or RunPod's by default.
        volume: Volume for files that are too large for a job; the environment's by default.

    Attributes:
        endpoint: The endpoint that runs the jobs.

    Raises:
        NoApiKey: If no API key is configured.
    """

    def __init__(
        self,
        endpoint_id: str,
        api_key: str | None = None,
        base_url: str | None = None,
        volume: "Volume | None" = None,
    ) -> None:
        self.endpoint = Endpoint(endpoint_id, api_key, base_url, volume)

    def handle_request(self, request: Any) -> Any:
        """Answer a request of httpx or httpx2 with a response of the same package.

        Raises:
            ReadTimeout: If no output has arrived within the client's read timeout.
        """
        package, head = _find_httpx_package(request), _read_request_head(request)
        timeout_s = _read_timeout_s(request)
        try:
            if is_upload(head, self.endpoint.id):
                with forms.parse_form(head.header("content-type"), request.stream) as form:
                    answer = self.endpoint.answer_request(replace(head, form=form), timeout_s)
            else:
                answer = self.endpoint.answer_request(replace(head, body=request.read()), timeout_s)
        except ReadTimedOut:
            raise package.ReadTimeout("the job took too long", request=request) from None
        except Refusal as refusal:
            return _error_response(package, refusal, find_dialect(head, self.endpoint.id))
        stream = _stream_class(package)(answer, request)
        return package.Response(answer.head.status, headers=answer.head.headers, stream=stream)

    def close(self) -> None:
        self.endpoint.close()


class AsyncRunpodTransport(httpx2.AsyncBaseTransport, AsyncHttpxTransport):
    """A transport for asyncio, with the arguments of ``RunpodTransport``.

    Use it as ``openai.AsyncOpenAI(http_client=httpx2.AsyncClient(transport=...))``.
    """

    def __init__(
        self,
        endpoint_id: str,
        api_key: str | None = None,
        base_url: str | None = None,
        volume: "Volume | None" = None,
    ) -> None:
        self.endpoint = AsyncEndpoint(endpoint_id, api_key, base_url, volume)

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request as ``RunpodTransport.handle_request`` does."""
        package, head = _find_httpx_package(request), _read_request_head(request)
        timeout_s = _read_timeout_s(request)
        try:
            if is_upload(head, self.endpoint.id):
                with await forms.aparse_form(head.header("content-type"), request.stream) as form:
                    answer = await self.endpoint.answer_request(replace(head, form=form), timeout_s)
            else:
                body = await request.aread()
                answer = await self.endpoint.answer_request(replace(head, body=body), timeout_s)
        except ReadTimedOut:
            raise package.ReadTimeout("the job took too long", request=request) from None
        except Refusal as refusal:
            return _error_response(package, refusal, find_dialect(head, self.endpoint.id))
        stream = _async_stream_class(package)(answer, request)
        return package.Response(answer.head.status, headers=answer.head.headers, stream=stream)

    async def aclose(self) -> None:
        await self.endpoint.aclose()


def _find_httpx_package(request: Any) -> ModuleType:
    return sys.modules[type(request).__module__.partition(".")[0]]


def _read_request_head(request: Any) -> Request:
    headers = {name.lower(): value for name, value in request.headers.items()}
    target = request.url.raw_path.decode("ascii")
    return Request(request.method, target, headers)


def _read_timeout_s(request: Any) -> float | None:
    read_timeout_s: float | None = request.extensions.get("timeout", {}).get("read")
    return read_timeout_s


def _error_response(package: ModuleType, refusal: Refusal, dialect: Dialect) -> Any:
    head, body = responses.error_response(refusal, dialect)
    return package.Response(head.status, headers=head.headers, content=body)


@functools.cache
def _stream_class(package: ModuleType) -> Any:
    """Return a class for response bodies; clients require a subclass from their own package."""

    class Stream(package.SyncByteStream):  # type: ignore[misc,name-defined]  # base class known at run time
        def __init__(self, answer: Answer, request: Any) -> None:
            self._answer, self._request = answer, request

        def __iter__(self) -> Iterator[bytes]:
            try:
                yield from self._answer.body_parts()
            except (ReadTimedOut, PlatformUnreachable) as error:
                raise _to_httpx_error(package, self._request, error) from None
            finally:
                # Some clients don't close a response when they stop reading it.
                self._answer.abandon()

        def close(self) -> None:
            self._answer.abandon()

    return Stream


@functools.cache
def _async_stream_class(package: ModuleType) -> Any:
    class AsyncStream(package.AsyncByteStream):  # type: ignore[misc,name-defined]  # base class known at run time
        def __init__(self, answer: AsyncAnswer, request: Any) -> None:
            self._answer, self._request = answer, request

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for part in self._answer.body_parts():
                    yield part
            except (ReadTimedOut, PlatformUnreachable) as error:
                raise _to_httpx_error(package, self._request, error) from None
            finally:
                self._answer.abandon()

        async def aclose(self) -> None:
            self._answer.abandon()

    return AsyncStream


def _to_httpx_error(package: Any, request: Any, error: Exception) -> Exception:
    if isinstance(error, ReadTimedOut):
        timeout: Exception = package.ReadTimeout("the job took too long", request=request)
        return timeout
    broken: Exception = package.ReadError(str(error), request=request)
    return broken
