"""The endpoint's API key: which routes need it, and how clients send it."""

import base64
import binascii
import hmac
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler


def platform_key(request: web.Request) -> list[str]:
    """Return the key that a request carries as the platform takes it."""
    # RunPod's documentation has it both with and without "Bearer".
    return [request.headers.get("Authorization", "").removeprefix("Bearer ")]


def any_key(request: web.Request) -> list[str]:
    """Return the keys that a request carries: besides the platform's x-api-key and Basic's user."""
    sent = [*platform_key(request), request.headers.get("x-api-key", "")]
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        sent.append(_user(token))
    return sent


def require_key(
    key: str | None, handler: Handler, sent: Callable[[web.Request], list[str]] = platform_key
) -> Handler:
    """Return a handler that answers 401 to requests without the key.

    Args:
        key: None: none is needed.
        handler: for requests that carry it.
        sent: returns what a request carries, of which one has to be the key.
    """
    if key is None:
        return handler
    expected = _as_bytes(key)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not any(hmac.compare_digest(_as_bytes(one), expected) for one in sent(request)):
            raise web.HTTPUnauthorized(text="the API key is missing or wrong")
        return await handler(request)

    return answer


def _user(token: str) -> str:
    try:
        found = base64.b64decode(token, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return found.partition(b":")[0].decode(errors="surrogateescape")


def _as_bytes(text: str) -> bytes:
    # A header may hold bytes that are not valid text.
    return text.encode(errors="surrogateescape")
