"""Access control of the proxy: callers need its key; without a key, they must be local programs."""

import base64
import binascii
import ipaddress
import re
import secrets

from starlette.datastructures import Headers

from llm_worker_client.mapping import Refusal

LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Host name or address in a Host header, with an optional port.
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::\d*)?")
# Suffixes that don't exist in the public DNS. The suffix .local is refused because any machine in a
# network may use it (mDNS).
_LOCAL_SUFFIXES = (".localhost", ".internal")


def check_caller(headers: Headers, key: str | None) -> None:
    """Check that the caller sends ``key``; if ``key`` is None, refuse web pages instead.

    Raises:
        Refusal: If the key is wrong or the request comes from a web page.
    """
    if key is None:
        _refuse_web_pages(headers)
    elif not any(secrets.compare_digest(each, key.encode()) for each in _keys_in_headers(headers)):
        raise Refusal(401, "The API key of this proxy is missing or wrong.")


def _refuse_web_pages(headers: Headers) -> None:
    """Refuse requests from web pages of other sites.

    A browser states in Sec-Fetch-Site whether a request comes from a page of another site, and
    names that site in the Origin of a POST. A page whose domain name resolves to this machine's
    address counts as the same site, so a Host header with such a domain name is refused.

    Raises:
        Refusal: If the request comes from a web page of another site, or may come from one.
    """
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not _is_trusted_host(host):
        raise Refusal(403, "The Host header does not name this machine.")
    is_foreign = origin is not None and origin.partition("://")[2] != host
    if is_foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "Web pages may not call this proxy.")


def _is_trusted_host(host: str) -> bool:
    if not (found := _HOST.fullmatch(host)):
        return False
    name = (found[1] or found[2]).lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_LOCAL_SUFFIXES)
    # Addresses like 0.0.0.0 reach this machine, too, but browsers send no Sec-Fetch-Site to them.
    return not (address.is_unspecified or getattr(address, "ipv4_mapped", None))


def _keys_in_headers(headers: Headers) -> list[bytes]:
    """Return the keys in a request: Bearer token, x-api-key header, and user name of Basic."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    keys = [headers.get("x-api-key", "").encode("latin-1")]
    if scheme.lower() == "bearer":
        keys.append(token.encode("latin-1"))
    elif scheme.lower() == "basic":
        keys.append(_basic_user(token))
    return keys


def _basic_user(token: str) -> bytes:
    try:
        return base64.b64decode(token, validate=True).partition(b":")[0]
    except (binascii.Error, ValueError):
        return b""
