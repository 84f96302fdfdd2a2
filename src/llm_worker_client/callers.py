"""Who may call the proxy: whoever has its key, or without one this machine's own programs."""

import base64
import binascii
import ipaddress
import secrets

from starlette.datastructures import Headers

from llm_worker_client.mapping import Refusal

LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Names that the public DNS has not.
_LOCAL = (".localhost", ".local", ".internal")


def check(headers: Headers, key: str | None) -> None:
    """Check that a request is a caller's who may.

    Args:
        headers: of the request.
        key: that callers have to send; None: none, but web pages are refused.

    Raises:
        Refusal: it is not.
    """
    if key is None:
        _refuse_web_pages(headers)
    elif not any(secrets.compare_digest(sent, key.encode()) for sent in _keys(headers)):
        raise Refusal(401, "The API key of this proxy is missing or wrong.")


def _refuse_web_pages(headers: Headers) -> None:
    """Refuse other sites' pages, and names that may be such a site's.

    A browser sends an Origin with every post to another site. Without one a page can only reach
    this machine by a name of its own that has this machine's address.
    """
    host = headers.get("host", "")
    if not _is_local(host):
        raise Refusal(403, "The Host is none of this machine.")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise Refusal(403, "This is not for web pages.")


def _is_local(authority: str) -> bool:
    # An address of IPv6 stands in brackets.
    if authority.startswith("["):
        name = authority[1:].partition("]")[0]
    else:
        name = authority.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(_LOCAL))
    return True


def _keys(headers: Headers) -> list[bytes]:
    """Return the keys that a request carries: as Bearer, as x-api-key, as the user of Basic."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    sent = [headers.get("x-api-key", "").encode("latin-1")]
    if scheme.lower() == "bearer":
        sent.append(token.encode("latin-1"))
    elif scheme.lower() == "basic":
        sent.append(_user(token))
    return sent


def _user(token: str) -> bytes:
    try:
        return base64.b64decode(token, validate=True).partition(b":")[0]
    except (binascii.Error, ValueError):
        return b""
