"""Reads the bodies of requests, limited in size and time, and parses them strictly."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from worker.errors import EngineBusy, InvalidInput, RequestError

# Minimum rate in bytes per second; reading a slower body is aborted.
MIN_RATE = 10_000
# Maximum number of bodies of the maximum size in memory.
MAX_BUFFERED_BODIES = 8


class InvalidBody(RequestError):
    """The body of a request can't be a job's input."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyReader:
    """Reads bodies of requests, and limits the total size of those in memory.

    Args:
        max_bytes: Maximum size of a body.
        timeout_s: Seconds to read a body, in addition to the time that its size allows.
        setting: Name of the setting that limits the size, for messages.
    """

    def __init__(self, max_bytes: int, timeout_s: float, setting: str = "MAX_INPUT_MB") -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._setting = setting
        self._buffered = 0

    async def read(self, request: Request) -> bytes:
        """Return a request's body; raises the same errors as ``read_chunks``."""
        async with contextlib.aclosing(self.read_chunks(request)) as parts:
            return b"".join([part async for part in parts])

    async def read_chunks(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a request's body; it counts as in memory until the generator ends.

        Raises:
            RequestError: The body is too large or arrives too slowly.
            EngineBusy: Too many bodies are in memory.
        """
        declared = request.headers.get("content-length", "")
        self._check_size(int(declared) if declared.isdecimal() else 0)
        stream, size = request.stream(), 0
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            while True:
                async with asyncio.timeout_at(deadline + size / MIN_RATE):
                    part = await anext(stream, None)
                if part is None:
                    return
                size += len(part)
                self._buffered += len(part)
                self._check_size(size)
                yield part
        except TimeoutError:
            text = f"The body came slower than {MIN_RATE:,} bytes a second (SERVE_TIMEOUT_S)."
            raise InvalidBody(408, text) from None
        finally:
            self._buffered -= size

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            text = f"The body has more than {self._max_bytes:,} bytes ({self._setting})."
            raise InvalidBody(413, text)
        if self._buffered > MAX_BUFFERED_BODIES * self._max_bytes:
            raise EngineBusy


def parse_body(body: bytes, media_type: str) -> dict[str, Any]:
    """Parse the body of a request.

    Args:
        body: The body; an empty body counts as an empty object.
        media_type: The value of the Content-Type header.

    Raises:
        RequestError: The body is not declared as JSON, or is no unambiguous JSON object.
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
