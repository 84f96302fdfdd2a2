"""Blocks web pages, since any page in a browser here could call a worker that needs no key."""

import ipaddress
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from worker.errors import Forbidden
from worker.serve.service import error_response

# The name or address in a Host header, which may be followed by a port.
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::\d*)?")
# Suffixes of names that don't exist in the public DNS, such as host.docker.internal. Not .local:
# anyone on the network can claim such a name (mDNS).
_LOCAL_SUFFIXES = (".localhost", ".internal")


class WebPageFilter:
    """An app that only programs of this machine and web pages of the allowed origins may call."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._refuse_foreign_pages(Headers(scope=scope))
            except Forbidden as error:
                refusal = error_response(error.body(str(uuid.uuid4())), scope)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refuse_foreign_pages(self, headers: Headers) -> None:
        """Refuse web pages of other sites, and host names that may belong to such a site.

        Browsers report in Sec-Fetch-Site whether a page of another site sends the request, and in
        Origin which page sends a POST. A site can give this machine's address a name of its own,
        and then its pages count as same-site; so Host is checked, too, which browsers always send.

        Raises:
            Forbidden: The request may come from such a page.
        """
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not _is_safe_host(host):
            raise Forbidden(
                "The Host header does not name this machine. Without a key the worker serves "
                "127.0.0.1 and localhost only: set SERVE_API_KEY to serve other names."
            )
        if origin in self._allowed:
            return
        foreign = origin is not None and origin.partition("://")[2] != host
        if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Forbidden(
                "Web pages may not call this worker: ALLOWED_ORIGINS lists the origins of those "
                "that may."
            )


def _is_safe_host(host: str) -> bool:
    if not (match := _HOST.fullmatch(host)):
        return False
    name = (match[1] or match[2]).lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_LOCAL_SUFFIXES)
    # A site can't have an IP address as its own name, so IP addresses are safe. Except
    # 0.0.0.0: it reaches this machine, too, but browsers send no Sec-Fetch-Site to it.
    return not (address.is_unspecified or getattr(address, "ipv4_mapped", None))
