"""The bodies of requests: read within a size and a time, and parsed strictly."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from worker.errors import EngineBusy, InvalidInput, RequestError

# Bytes a second: a body that comes slower is given up.
SLOWEST = 10_000
# Bodies of the largest size that are held at once.
MOST_HELD = 8


class Refused(RequestError):
    """A request whose body can't be a job's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Bodies:
    """Reads bodies, of which all together have a size.

    Args:
        largest: bytes of one.
        patience_s: seconds for one, besides those that its bytes may take.
        setting: what bounds one.
    """

    def __init__(self, largest: int, patience_s: float, setting: str = "MAX_INPUT_MB") -> None:
        self._largest = largest
        self._patience_s = patience_s
        self._setting = setting
        self._held = 0

    async def read(self, request: Request) -> bytes:
        """Return a request's body; see ``parts``."""
        async with contextlib.aclosing(self.parts(request)) as parts:
            return b"".join([part async for part in parts])

    async def parts(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield a request's body as it comes; it counts as held until the end of this.

        Raises:
            RequestError: it is too large, or too slow.
            EngineBusy: there are too many.
        """
        declared = request.headers.get("content-length", "")
        self._check(int(declared) if declared.isdecimal() else 0)
        stream, size = request.stream(), 0
        until = asyncio.get_running_loop().time() + self._patience_s
        try:
            while True:
                async with asyncio.timeout_at(until + size / SLOWEST):
                    part = await anext(stream, None)
                if part is None:
                    return
                size += len(part)
                self._held += len(part)
                self._check(size)
                yield part
        except TimeoutError:
            message = f"The body came slower than {SLOWEST:,} bytes a second (SERVE_TIMEOUT_S)."
            raise Refused(408, message) from None
        finally:
            self._held -= size

    def _check(self, size: int) -> None:
        if size > self._largest:
            raise Refused(413, f"The body has more than {self._largest:,} bytes ({self._setting}).")
        if self._held > MOST_HELD * self._largest:
            raise EngineBusy


def decoded(body: bytes, media_type: str) -> dict[str, Any]:
    """Parse a body.

    Args:
        body: none is an object without keys.
        media_type: its Content-Type.

    Raises:
        RequestError: it is not a JSON object, or not one that all readers understand alike.
    """
    if not body:
        return {}
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "Send the body as JSON, with the header Content-Type: application/json.")
    try:
        parsed = json.loads(body, object_pairs_hook=_object, parse_constant=_refuse_constant)
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise InvalidInput("The body is broken JSON: an object has a key twice.")
    return made


def _refuse_constant(name: str) -> Any:
    raise InvalidInput(f"The body is broken JSON: {name} is no number that JSON has.")
