"""Who may call the proxy: callers that have its key, or without one this machine's programs."""

import base64
import binascii
import ipaddress
import re
import secrets

from starlette.datastructures import Headers

from llm_worker_client.mapping import Refusal

LOOPBACK = ("127.0.0.1", "::1", "localhost")
# The name or address in a Host, which may have a port behind it.
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::\d*)?")
# Names that the public DNS has not. Not .local: in a network anybody may take such a name (mDNS).
_LOCAL = (".localhost", ".internal")


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

    A browser says in Sec-Fetch-Site whether a page of another site asks, and which one in the
    Origin of a post. By a name of its own that has this machine's address, a page is of the same
    site: so the Host counts, too, which no browser leaves out.
    """
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not _is_local(host):
        raise Refusal(403, "The Host is none of this machine.")
    foreign = origin is not None and origin.partition("://")[2] != host
    if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "This is not for web pages.")


def _is_local(host: str) -> bool:
    if not (found := _HOST.fullmatch(host)):
        return False
    name = (found[1] or found[2]).lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_LOCAL)
    # 0.0.0.0 and the like lead here as well, and for them a browser says nothing of the site.
    return not (address.is_unspecified or getattr(address, "ipv4_mapped", None))


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
