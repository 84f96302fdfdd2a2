"""Which URLs and which network addresses media may be fetched from: the public internet only."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from yarl import URL

# Characters: URLs with a signature are long.
LONGEST_URL = 8_192
# Ports of services that were never meant for a browser are below, apart from the web's own.
FIRST_FREE_PORT = 1_024
WEB_PORTS = (80, 443)

# Characters that programs drop, or read as others, when they read a URL.
_DISPUTED = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Hosts that end in a number are addresses to some programs: 127.1, 0x7f.1, 2130706433.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Addresses that no one on the internet has, besides those that the standard library knows as such.
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments; a cloud's metadata service
            "192.88.99.0/24",  # relays from IPv6 to IPv4
            "168.63.129.16/32",  # a cloud's metadata service, at a public address
            "2001::/23",  # tunnels and other protocol assignments
            "2002::/16",  # IPv4 in IPv6: no longer used
            "3fff::/20",  # documentation
        ),
    )
)
# All that is assigned to hosts of the internet.
_UNICAST = ip_network("2000::/3")
# Where a network translates IPv6 to IPv4.
_TRANSLATED = ip_network("64:ff9b::/96")


class Unusable(ValueError):
    """A URL that nothing is fetched from; the message says why, without the URL."""


def is_public(address: str) -> bool:
    """Return whether a network address belongs to the public internet."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if ip.scope_id is not None:
            return False
        if (embedded := _embedded(ip)) is not None:
            ip = embedded
        elif ip not in _UNICAST:
            return False
    unlisted = not any(ip in network for network in _NOT_PUBLIC if network.version == ip.version)
    return unlisted and ip.is_global and not (ip.is_multicast or ip.is_reserved)


def _embedded(ip: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that packets to an IPv6 address end at, if it has one."""
    if ip in _TRANSLATED:
        return IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped


def parsed(text: str) -> URL:
    """Read the URL of a medium so that nothing in it can be read in two ways.

    Raises:
        Unusable: it isn't http or https, or its host, port or spelling is refused.
    """
    if len(text) > LONGEST_URL:
        raise Unusable(
            f"its URL has {len(text):,} characters, and at most {LONGEST_URL:,} are read"
        )
    if _DISPUTED.search(text):
        raise Unusable("its URL has a blank, a backslash or a control character")
    authority = _AUTHORITY.match(text)
    if authority is None:
        raise Unusable("its URL is neither http, https nor data")
    if "@" in authority[1]:
        raise Unusable("its URL has a user or a password")
    try:
        # As it is, where it can be: signatures are of the URL as it was written.
        url = URL(text, encoded=text.isascii()).with_fragment(None)
        host, port = url.raw_host, url.port
    except ValueError:
        raise Unusable("its URL can't be read") from None
    if port not in WEB_PORTS and (port or 0) < FIRST_FREE_PORT:
        raise Unusable(f"its URL has a port below {FIRST_FREE_PORT:,}, other than 80 and 443")
    bracketed = authority[1].startswith("[")
    if host is None or not (_is_address(host) or (_is_name(host) and not bracketed)):
        raise Unusable("its URL has no host of the public internet")
    return url


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _is_name(host: str) -> bool:
    """Return whether a host is a domain name: labels with dots, the last of which is no number."""
    labels = host.lower().removesuffix(".").split(".")
    return (
        len(labels) > 1 and all(map(_LABEL.fullmatch, labels)) and not _NUMBER.fullmatch(labels[-1])
    )
