"""Keeps web pages out: any page in a browser on this machine could call the emulator."""

import ipaddress
import re

from aiohttp import web
from aiohttp.typedefs import Handler

# The name or address in a Host, which may have a port behind it.
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::\d*)?")
# Names that the public DNS has not, such as host.docker.internal. Not .local: in a network anybody
# may take such a name (mDNS).
_LOCAL = (".localhost", ".internal")


@web.middleware
async def refuse_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests of other sites' pages, and those to a name that may be such a site's.

    A browser says in Sec-Fetch-Site whether a page of another site asks, and which one in the
    Origin of a post. By a name of its own that has this machine's address, a page is of the same
    site: so the Host counts, too, which no browser leaves out.
    """
    host, origin = request.headers.get("Host"), request.headers.get("Origin")
    if host is not None and not _is_local(host):
        raise web.HTTPForbidden(text="the Host is none of this machine")
    foreign = origin is not None and origin.partition("://")[2] != host
    if foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise web.HTTPForbidden(text="not for web pages")
    return await handler(request)


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
