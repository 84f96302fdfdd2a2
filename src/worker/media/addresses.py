"""Restricts the URLs and addresses that media are fetched from to the public internet."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from yarl import URL

# Maximum number of characters of a URL. Signed URLs are long.
MAX_URL_LENGTH = 8_192
# The lowest allowed port other than those of the web. Lower ports belong to other services, which
# are not meant for browsers.
MIN_PORT = 1_024
WEB_PORTS = (80, 443)

# Characters that URL parsers drop or interpret differently from each other.
_AMBIGUOUS_CHARACTER = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Some programs read a host whose last label is a number as an IPv4 address, such as 0x7f.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Networks outside the public internet, in addition to those that ``ipaddress`` recognizes.
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments; a cloud's metadata service
            "192.88.99.0/24",  # relays from IPv6 to IPv4
            "168.63.129.16/32",  # a cloud's metadata service, at a public address
            "2001::/23",  # tunnels and other protocol assignments
            "2002::/16",  # IPv4 in IPv6 (6to4), no longer used
            "3fff::/20",  # documentation
        ),
    )
)
# The IPv6 network of all hosts of the public internet.
_GLOBAL_UNICAST = ip_network("2000::/3")
# IPv6 addresses that a network translates to IPv4 (NAT64).
_NAT64 = ip_network("64:ff9b::/96")


class UnusableURL(ValueError):
    """A URL that the worker can't or must not fetch; the message does not contain the URL."""


def is_public_address(address: str) -> bool:
    """Return whether a network address belongs to the public internet."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if ip.scope_id is not None:
            return False
        if (ipv4 := _embedded_ipv4(ip)) is not None:
            ip = ipv4
        elif ip not in _GLOBAL_UNICAST:
            return False
    is_unlisted = not any(ip in network for network in _NOT_PUBLIC if network.version == ip.version)
    return is_unlisted and ip.is_global and not (ip.is_multicast or ip.is_reserved)


def _embedded_ipv4(ip: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that packets to this IPv6 address finally reach, if there is one."""
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped


def parse_web_url(text: str) -> URL:
    """Parse an http or https URL and refuse every URL that parsers could read differently.

    Raises:
        UnusableURL: If the scheme, the host, the port or the spelling is refused.
    """
    if len(text) > MAX_URL_LENGTH:
        raise UnusableURL(
            f"its URL has {len(text):,} characters, and at most {MAX_URL_LENGTH:,} are accepted"
        )
    if _AMBIGUOUS_CHARACTER.search(text):
        raise UnusableURL("its URL has a space, a backslash or a control character")
    authority = _AUTHORITY.match(text)
    if authority is None:
        raise UnusableURL("its URL is neither http, https nor data")
    if "@" in authority[1]:
        raise UnusableURL("its URL has a user or a password")
    try:
        # Keep the original spelling if possible: signatures cover the URL as the caller wrote it.
        url = URL(text, encoded=text.isascii()).with_fragment(None)
        host, port = url.raw_host, url.port
    except ValueError:
        raise UnusableURL("its URL can't be read") from None
    if port not in WEB_PORTS and (port or 0) < MIN_PORT:
        raise UnusableURL(f"its URL has a port below {MIN_PORT:,}, other than 80 and 443")
    is_bracketed = authority[1].startswith("[")
    if host is None or not (_is_ip_address(host) or (_is_domain_name(host) and not is_bracketed)):
        raise UnusableURL("its URL has no host of the public internet")
    return url


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _is_domain_name(host: str) -> bool:
    """Return whether a host is a domain name of several labels, the last of them not a number."""
    labels = host.lower().removesuffix(".").split(".")
    return (
        len(labels) > 1 and all(map(_LABEL.fullmatch, labels)) and not _NUMBER.fullmatch(labels[-1])
    )
