"""Access control of the proxy: its key, and the refusal of web pages of other sites."""

import base64
import binascii
import secrets

from starlette.datastructures import Headers

from llm_worker_client.mapping import Refusal
from llm_worker_console.web_pages import PageRefusal, find_page_refusal

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_REMEDY = (
    f"To serve other names and pages, set PROXY_API_KEY and another --host than {LOOPBACK[0]}."
)
_PAGE_REFUSALS = {
    PageRefusal.FOREIGN_HOST: f"The Host header does not name this machine. {_REMEDY}",
    PageRefusal.FOREIGN_PAGE: f"Web pages may not call this proxy. {_REMEDY}",
}


def check_key(headers: Headers, key: str) -> None:
    """Check that a request has the proxy's key.

    Raises:
        Refusal: If the key is missing or wrong.
    """
    if not any(secrets.compare_digest(each, key.encode()) for each in _keys_in_headers(headers)):
        raise Refusal(401, "The API key of this proxy is missing or wrong.")


def refuse_web_pages(headers: Headers) -> None:
    """Refuse a request that a web page of another site may have sent.

    Raises:
        Refusal: If such a page may have sent it.
    """
    if refusal := find_page_refusal(headers):
        raise Refusal(403, _PAGE_REFUSALS[refusal])


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
