"""Finds the key in a request's headers, where each kind of client sends it differently."""

import base64
import secrets
from contextlib import suppress

from pydantic import SecretStr
from starlette.datastructures import Headers


def request_has_key(headers: Headers, key: SecretStr) -> bool:
    """Return whether a request has this key: as Bearer, x-api-key, or the user name of Basic."""
    expected = key.get_secret_value().encode()
    scheme, token = parse_authorization(headers)
    candidates = [headers.get("x-api-key", "").encode("latin-1")]
    if scheme == "bearer":
        candidates = [token.encode("latin-1")]
    elif scheme == "basic":
        with suppress(ValueError):  # not base64
            candidates.append(base64.b64decode(token, validate=True).partition(b":")[0])
    return any(secrets.compare_digest(one, expected) for one in candidates)


def parse_authorization(headers: Headers) -> tuple[str, str]:
    """Return the Authorization header's scheme, in lower case, and the credentials after it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return scheme.lower(), token
