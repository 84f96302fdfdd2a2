"""The rule that keeps web pages of other sites away from a server on this machine.

Any page in a browser here can send requests to the worker (``--serve``), the emulator and the
client's proxy. All three apply this rule, and each raises an error of its own. The worker and the
proxy don't apply it if they serve the network, and the worker not if it allows pages of any site.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto

# The name or address in a Host header, which may be followed by a port.
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::\d*)?")
# Suffixes of names that don't exist in the public DNS, such as host.docker.internal. Not .local:
# anyone on the network can claim such a name (mDNS).
_LOCAL_SUFFIXES = (".localhost", ".internal")


class PageRefusal(Enum):
    """The reason why a request may come from a web page of another site."""

    FOREIGN_HOST = auto()  # the name in Host may belong to such a site
    FOREIGN_PAGE = auto()  # the browser says so


def find_page_refusal(
    headers: Mapping[str, str], allowed_origins: Sequence[str] = ()
) -> PageRefusal | None:
    """Return why a request may come from a web page of another site; None if it can't.

    Browsers report in Sec-Fetch-Site whether a page of another site sends the request, and in
    Origin which page sends a POST. A site can give this machine's address a name of its own, and
    then its pages count as same-site; so Host is checked, too, which browsers always send.

    Args:
        headers: The headers of the request, which are found by names in any case.
        allowed_origins: The origins of other sites whose pages may call. Their names are safe in
            Host, too, where a reverse proxy on this machine passes them on.
    """
    host, origin = headers.get("Host"), headers.get("Origin")
    if host is not None and not _is_safe_name(_read_name(host), allowed_origins):
        return PageRefusal.FOREIGN_HOST
    if origin in allowed_origins:
        return None
    is_foreign = origin is not None and origin.partition("://")[2] != host
    if is_foreign or headers.get("Sec-Fetch-Site") not in (None, "none", "same-origin"):
        return PageRefusal.FOREIGN_PAGE
    return None


def _read_name(host: str) -> str:
    """Return the name or the address in a Host header; empty if there is no valid one."""
    match = _HOST.fullmatch(host)
    return (match[1] or match[2]).lower() if match else ""


def _is_safe_name(name: str, allowed_origins: Sequence[str]) -> bool:
    if not name:
        return False
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        if "." not in name or name.endswith(_LOCAL_SUFFIXES):
            return True
        return name in [_read_name(origin.partition("://")[2]) for origin in allowed_origins]
    # A site can't have an IP address as its own name, so IP addresses are safe. Except
    # 0.0.0.0: it reaches this machine, too, but browsers send no Sec-Fetch-Site to it.
    return not (address.is_unspecified or getattr(address, "ipv4_mapped", None))
