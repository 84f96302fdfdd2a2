"""Transports for `openai` and other clients on httpx: their requests become jobs of an endpoint.

A transport is one of `httpx2`, which new clients need, and of `httpx`, which older ones do: a
response is of the package that the request is of.
"""

import functools
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import httpx2

from llm_worker_client.endpoint import Answer, AsyncAnswer, AsyncEndpoint, Endpoint
from llm_worker_client.mapping import Dialect, Refusal, Request, dialect_of, forms, responses
from llm_worker_client.steps import TookTooLong, Unreachable

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport as AsyncHttpxTransport
    from httpx import BaseTransport as HttpxTransport

    from llm_worker_client.volume import Volume
else:
    # Only a type checker asks whether a transport is one of httpx, which may be missing.
    HttpxTransport = AsyncHttpxTransport = object


class RunpodTransport(httpx2.BaseTransport, HttpxTransport):
    """For ``openai.OpenAI(http_client=httpx2.Client(transport=RunpodTransport("<endpoint>")))``.

    Whatever base address and key the client has are not used: only the path counts.

    Args:
        endpoint_id: of the deployed endpoint.
        api_key: of the account; None: RUNPOD_API_KEY's, or that of the platform's own file.
        base_url: of the platform's API; None: RunPod's.
        volume: where files go that no job holds; None: the environment's, if it names one.

    Attributes:
        endpoint: that runs the jobs.

    Raises:
        NoKey: there is no key.
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
        """Answer a request of httpx or httpx2 with a response of the same."""
        package, asked, patience_s = _package_of(request), _bare(request), _patience_s(request)
        try:
            if asked.is_form:
                with forms.read(asked.header("content-type"), request.stream) as form:
                    answer = self.endpoint.answer(replace(asked, form=form), patience_s)
            else:
                answer = self.endpoint.answer(replace(asked, body=request.read()), patience_s)
        except TookTooLong:
            raise package.ReadTimeout("the job took too long", request=request) from None
        except Refusal as refusal:
            return _refused(package, refusal, dialect_of(asked, self.endpoint.id))
        stream = _stream_class(package)(answer, request)
        return package.Response(answer.head.status, headers=answer.head.headers, stream=stream)

    def close(self) -> None:
        self.endpoint.close()


class AsyncRunpodTransport(httpx2.AsyncBaseTransport, AsyncHttpxTransport):
    """For ``openai.AsyncOpenAI(http_client=httpx2.AsyncClient(transport=...))``, with asyncio.

    Its arguments are those of ``RunpodTransport``.
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
        """Answer a request of httpx or httpx2 with a response of the same."""
        package, asked, patience_s = _package_of(request), _bare(request), _patience_s(request)
        try:
            if asked.is_form:
                with await forms.aread(asked.header("content-type"), request.stream) as form:
                    answer = await self.endpoint.answer(replace(asked, form=form), patience_s)
            else:
                whole = replace(asked, body=await request.aread())
                answer = await self.endpoint.answer(whole, patience_s)
        except TookTooLong:
            raise package.ReadTimeout("the job took too long", request=request) from None
        except Refusal as refusal:
            return _refused(package, refusal, dialect_of(asked, self.endpoint.id))
        stream = _async_stream_class(package)(answer, request)
        return package.Response(answer.head.status, headers=answer.head.headers, stream=stream)

    async def aclose(self) -> None:
        await self.endpoint.aclose()


def _package_of(request: Any) -> ModuleType:
    return sys.modules[type(request).__module__.partition(".")[0]]


def _bare(request: Any) -> Request:
    """Return a request without its body."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    target = request.url.raw_path.decode("ascii")
    return Request(request.method, target, headers)


def _patience_s(request: Any) -> float | None:
    patience_s: float | None = request.extensions.get("timeout", {}).get("read")
    return patience_s


def _refused(package: ModuleType, refusal: Refusal, dialect: Dialect) -> Any:
    head, body = responses.refused(refusal, dialect)
    return package.Response(head.status, headers=head.headers, content=body)


@functools.cache
def _stream_class(package: ModuleType) -> Any:
    """Return the class of a response's body: clients insist on their own package's."""

    class Stream(package.SyncByteStream):  # type: ignore[misc,name-defined]  # known at run time
        def __init__(self, answer: Answer, request: Any) -> None:
            self._answer, self._request = answer, request

        def __iter__(self) -> Iterator[bytes]:
            try:
                yield from self._answer.parts()
            except (TookTooLong, Unreachable) as error:
                raise _broken(package, self._request, error) from None
            finally:
                # Not every client closes a response that it stops to read.
                self._answer.close()

        def close(self) -> None:
            self._answer.close()

    return Stream


@functools.cache
def _async_stream_class(package: ModuleType) -> Any:
    class Stream(package.AsyncByteStream):  # type: ignore[misc,name-defined]  # known at run time
        def __init__(self, answer: AsyncAnswer, request: Any) -> None:
            self._answer, self._request = answer, request

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for part in self._answer.parts():
                    yield part
            except (TookTooLong, Unreachable) as error:
                raise _broken(package, self._request, error) from None
            finally:
                self._answer.leave()

        async def aclose(self) -> None:
            self._answer.leave()

    return Stream


def _broken(package: Any, request: Any, error: Exception) -> Exception:
    if isinstance(error, TookTooLong):
        found: Exception = package.ReadTimeout("the job took too long", request=request)
        return found
    lost: Exception = package.ReadError(str(error), request=request)
    return lost
