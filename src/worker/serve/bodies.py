"""The bodies of requests and responses: limited in size, time and memory, and parsed strictly."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from worker.errors import EngineBusy, InvalidInput, RequestError
from worker.validation import MAX_KEY_LENGTH

# Minimum rate in bytes per second; reading a slower body is aborted.
MIN_RATE = 10_000
# Maximum number of bodies of the maximum size in memory.
MAX_BUFFERED_BODIES = 8
# Bytes of a small body, which is never refused because of the large ones in memory, and of a
# response that are sent at a time. A connection buffers as many bytes that its client hasn't read.
SMALL_BYTES = 65_536


class InvalidBody(RequestError):
    """The body of a request can't be a job's input."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BufferedBytes:
    """Counts the bytes of bodies in memory; a body is refused if there are more than a maximum."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._count = 0

    def add(self, count: int) -> None:
        self._count += count

    def check(self, size: int) -> None:
        if size > SMALL_BYTES and self._count > self._max_bytes:
            raise EngineBusy


class BufferedResponse(Response):
    """A response whose body counts as in memory until the client has read all but its end."""

    def __init__(self, buffered: BufferedBytes, body: bytes, **options: Any) -> None:
        super().__init__(body, **options)
        self._buffered = buffered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(self.body)
        if size <= SMALL_BYTES:
            await super().__call__(scope, receive, send)
            return
        self._buffered.check(size)
        self._buffered.add(size)
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            for begin in range(0, size, SMALL_BYTES):
                part = bytes(self.body[begin : begin + SMALL_BYTES])
                more = begin + SMALL_BYTES < size
                await send({"type": "http.response.body", "body": part, "more_body": more})
        finally:
            self._buffered.add(-size)


class BodyReader:
    """Reads bodies of requests, of at most ``max_bytes``; messages name ``setting``, which sets it.

    A client may pause for ``timeout_s`` seconds, or be late by as much with ``MIN_RATE``. The bytes
    in memory count in ``buffered``, which readers may share.
    """

    def __init__(
        self,
        max_bytes: int,
        timeout_s: float,
        buffered: BufferedBytes | None = None,
        setting: str = "MAX_INPUT_MB",
    ) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._setting = setting
        self._buffered = buffered or BufferedBytes(MAX_BUFFERED_BODIES * max_bytes)

    async def read(self, request: Request) -> bytes:
        async with contextlib.aclosing(self.read_chunks(request)) as parts:
            return b"".join([part async for part in parts])

    async def read_chunks(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a request's body; it counts as in memory until the generator ends."""
        encoding = ", ".join(request.headers.getlist("content-encoding"))
        if encoding.strip().lower() not in ("", "identity"):
            text = f"The header Content-Encoding is {encoding[:MAX_KEY_LENGTH]!r}"
            raise InvalidBody(415, f"{text}: send the body uncompressed, without this header.")
        declared = request.headers.get("content-length", "")
        self._check_size(int(declared) if declared.isdecimal() else 0)
        stream, size = request.stream(), 0
        # Seconds that the client may pause. They never exceed those at the beginning, however many
        # bytes have arrived, because these stay in memory meanwhile.
        credit_s, now = self._timeout_s, asyncio.get_running_loop().time
        try:
            while True:
                began = now()
                async with asyncio.timeout(credit_s):
                    part = await anext(stream, None)
                if part is None:
                    return
                credit_s += len(part) / MIN_RATE - (now() - began)
                credit_s = min(credit_s, self._timeout_s)
                size += len(part)
                self._buffered.add(len(part))
                self._check_size(size)
                yield part
        except TimeoutError:
            text = (
                f"The body came slower than {MIN_RATE:,} bytes a second, or paused for longer than "
                f"{self._timeout_s:g} s (SERVE_TIMEOUT_S)."
            )
            raise InvalidBody(408, text) from None
        finally:
            self._buffered.add(-size)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            text = f"The body has more than {self._max_bytes:,} bytes ({self._setting})."
            raise InvalidBody(413, text)
        self._buffered.check(size)


def parse_body(body: bytes, media_type: str) -> dict[str, Any]:
    """Parse a body as an unambiguous JSON object; an empty body counts as an empty object.

    ``media_type`` is the value of the Content-Type header.
    """
    if not body:
        return {}
    if media_type.partition(";")[0].strip().lower() != "application/json":
        text = "Send the body as JSON, with the header Content-Type: application/json."
        raise InvalidBody(415, text)
    try:
        parsed = json.loads(
            body,
            object_pairs_hook=_object_with_unique_keys,
            parse_constant=_refuse_nan_and_infinity,
        )
    except RecursionError:
        raise InvalidInput("The body is nested too deeply.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as broken:
        raise InvalidInput(f"The body is broken JSON: {broken}") from None
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise InvalidInput(f"A number in the body has more than {digits:,} digits.") from None
    if not isinstance(parsed, dict):
        raise InvalidInput("The body is not a JSON object.")
    return parsed


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        raise InvalidInput("The body is broken JSON: an object has a key twice.")
    return parsed


def _refuse_nan_and_infinity(name: str) -> Any:
    raise InvalidInput(f"The body is broken JSON: {name} is not a number in JSON.")
