"""The key that a request carries: each kind of client sends it in its own way."""

import base64
import binascii
import secrets

from pydantic import SecretStr
from starlette.datastructures import Headers


def right(headers: Headers, key: SecretStr) -> bool:
    """Return whether a request carries a key: as Bearer, as x-api-key, or as the user of Basic."""
    expected = key.get_secret_value().encode()
    scheme, token = authorization(headers)
    sent = [headers.get("x-api-key", "").encode("latin-1")]
    if scheme == "bearer":
        sent = [token.encode("latin-1")]
    elif scheme == "basic":
        sent.append(_user(token))
    return any(secrets.compare_digest(one, expected) for one in sent)


def authorization(headers: Headers) -> tuple[str, str]:
    """Return the scheme of a request's authorization, in small letters, and what follows it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return scheme.lower(), token


def _user(token: str) -> bytes:
    try:
        return base64.b64decode(token, validate=True).partition(b":")[0]
    except (binascii.Error, ValueError):
        return b""
