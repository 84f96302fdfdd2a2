"""Keeps web pages out: any page in a browser on this machine could call a worker without a key."""

import ipaddress
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from worker.errors import Forbidden
from worker.serve.service import error_response

# The name or address in a Host, which may have a port behind it.
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::\d*)?")
# Names that the public DNS has not, such as host.docker.internal. Not .local: in a network anybody
# may take such a name (mDNS).
_LOCAL = (".localhost", ".internal")


class WebPages:
    """An app that only programs of this machine may call, and pages of the allowed origins."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope))
            except Forbidden as error:
                refusal = error_response(error.body(str(uuid.uuid4())), scope)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        """Refuse other sites' pages, and names that may be such a site's.

        A browser says in Sec-Fetch-Site whether a page of another site asks, and which one in the
        Origin of a post. By a name of its own that has this machine's address, a page is of the
        same site: so the Host counts, too, which no browser leaves out.

        Raises:
            Forbidden: it may be such a page.
        """
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not _is_local(host):
            raise Forbidden(
                "The Host is none of this machine. Without a key the worker serves 127.0.0.1 and "
                "localhost only: set SERVE_API_KEY to serve other names."
            )
        if origin in self._allowed:
            return
        foreign = origin is not None and origin.partition("://")[2] != host
        if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Forbidden(
                "This is not for web pages: ALLOWED_ORIGINS names the origins of those that may "
                "call the worker."
            )


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
