"""Keeps web pages out: any page in a browser on this machine could call the emulator."""

import ipaddress

from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

# Names that the public DNS has not, such as host.docker.internal.
_LOCAL = (".localhost", ".local", ".internal")


@web.middleware
async def refuse_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests of other sites' pages, and those to a name that may be such a site's.

    A browser sends an Origin with every post to another site. Without one, a page can only reach
    this machine by a name of its own that has this machine's address.
    """
    if not _is_local(_host(request.host)):
        raise web.HTTPForbidden(text="the Host is none of this machine")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        raise web.HTTPForbidden(text="not for web pages")
    return await handler(request)


def _host(authority: str) -> str:
    try:
        return URL(f"http://{authority}").host or ""
    except ValueError:
        return "."


def _is_local(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_LOCAL)
    return True
