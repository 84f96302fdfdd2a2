"""Fetches media and other files from the public internet only.

A URL is parsed so strictly that no other program could read it in another way. The addresses of its
host are checked when the name is resolved, and again when the socket is created. Redirects are
followed here, each with the same checks.
"""

import re
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

MAX_REDIRECTS = 3
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
CHUNK_BYTES = 64 * 1024

HEADERS = {
    "User-Agent": "llm-worker",
    # Without this header, a small compressed response could expand to a large one.
    "Accept-Encoding": "identity",
}
# Content types that servers send for files of an unknown type.
GENERIC_TYPES = ("application/octet-stream", "binary/octet-stream")
# The same message for a name that doesn't exist and a name that only an internal network resolves,
# so that callers can't probe that network.
NO_PUBLIC_ADDRESS = "its host has no address on the public internet"

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

# Returns whether the worker may connect to a network address.
AddressFilter = Callable[[str], bool]


class UnusableURL(ValueError):
    """A URL that the worker can't or must not fetch; the message names neither URL nor address."""


def is_public_address(address: str) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if ip.scope_id is not None:
            return False
        # Packets to these addresses finally reach an IPv4 address.
        if ip in _NAT64:
            ip = IPv4Address(int(ip) & 0xFFFF_FFFF)
        elif ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        elif ip not in _GLOBAL_UNICAST:
            return False
    is_unlisted = not any(ip in network for network in _NOT_PUBLIC if network.version == ip.version)
    return is_unlisted and ip.is_global and not (ip.is_multicast or ip.is_reserved)


def parse_web_url(text: str) -> URL:
    """Parse an http or https URL and refuse every URL that parsers could read differently."""
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


@dataclass(frozen=True, slots=True)
class ContentTypes:
    """Content types that a fetcher accepts."""

    # The first one is assumed if a response has no type.
    prefixes: tuple[str, ...]
    # The kind of file, for messages.
    noun: str


MEDIA_TYPES = ContentTypes(
    ("image/", "video/", "audio/", *GENERIC_TYPES), "an image, a video or audio"
)


class SizeBudget(Protocol):
    """A limit for the size of a file; both methods raise an error if the file is too large."""

    def check_bytes(self, count: int) -> None:
        """Raise an error if this number of further bytes would exceed the limit."""

    def add_bytes(self, count: int) -> None:
        """Count bytes that have arrived; raise an error if they exceed the limit."""


class _FilteringResolver(AbstractResolver):
    """A resolver that refuses a name with no address, or with any address that is not allowed."""

    def __init__(self, resolver: AbstractResolver, is_allowed: AddressFilter) -> None:
        self._resolver = resolver
        self._is_allowed = is_allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        if not results or not all(self._is_allowed(one["host"]) for one in results):
            raise UnusableURL(NO_PUBLIC_ADDRESS)
        return results

    async def close(self) -> None:
        await self._resolver.close()


class WebFetcher:
    """Fetches files, each over a new connection.

    If ``allowed_domains`` is empty, all hosts are allowed. ``is_allowed`` says whether the worker
    may connect to a network address.
    """

    def __init__(
        self,
        allowed_domains: Collection[str] = (),
        *,
        is_allowed: AddressFilter = is_public_address,
        create_resolver: Callable[[], AbstractResolver] = aiohttp.ThreadedResolver,
        types: ContentTypes = MEDIA_TYPES,
    ) -> None:
        self._domains = {domain.lower() for domain in allowed_domains}
        self._is_allowed = is_allowed
        self._create_resolver = create_resolver
        self._types = types

    async def fetch(self, url: str, budget: SizeBudget) -> bytes:
        body = bytearray()
        await self.download(url, budget, body.extend)
        return bytes(body)

    async def download(self, url: str, budget: SizeBudget, write: Callable[[bytes], Any]) -> None:
        """Call ``write`` with each chunk of a file, without a timeout; or raise ``UnusableURL``."""
        connector = aiohttp.TCPConnector(
            resolver=_FilteringResolver(self._create_resolver(), self._is_allowed),
            use_dns_cache=False,
            force_close=True,
            socket_factory=self._open_socket,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            headers=HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # no proxies and no passwords from the environment
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            async with session:
                await self._follow_redirects(session, url, budget, write)
        except aiohttp.ClientConnectorDNSError:
            raise UnusableURL(NO_PUBLIC_ADDRESS) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, UnusableURL):
                raise
            raise UnusableURL("it could not be fetched from its host") from None

    def _parse_allowed_url(self, address: str) -> URL:
        url = parse_web_url(address)
        host = (url.raw_host or "").lower().removesuffix(".")
        if self._domains and host not in self._domains:
            raise UnusableURL("its host is not one of ALLOWED_MEDIA_DOMAINS")
        return url

    def _open_socket(self, info: Any) -> socket.socket:
        """Open a socket, after checking the address to connect to, however it was resolved."""
        family, type_, protocol, _, address = info
        if not self._is_allowed(address[0]):
            raise UnusableURL(NO_PUBLIC_ADDRESS)
        return socket.socket(family, type_, protocol)

    async def _follow_redirects(
        self,
        session: aiohttp.ClientSession,
        address: str,
        budget: SizeBudget,
        write: Callable[[bytes], Any],
    ) -> None:
        url = self._parse_allowed_url(address)
        for _ in range(MAX_REDIRECTS + 1):
            async with session.get(url, allow_redirects=False) as response:
                if response.status in REDIRECT_STATUSES:
                    location = response.headers.get("Location", "")
                    target = url.join(URL(location, encoded=location.isascii()))
                    url = self._parse_allowed_url(str(target))
                    continue
                if response.status != 200:
                    raise UnusableURL(f"its host answers {response.status}")
                types = self._types
                type_ = response.headers.get("Content-Type", types.prefixes[0]).strip().lower()
                if not type_.startswith(types.prefixes):
                    raise UnusableURL(f"its host does not say that it is {types.noun}")
                budget.check_bytes(response.content_length or 0)
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    budget.add_bytes(len(chunk))
                    write(chunk)
                return
        raise UnusableURL(f"its host redirects more than {MAX_REDIRECTS} times")
