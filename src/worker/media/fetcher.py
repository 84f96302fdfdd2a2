"""Fetches media and other files from the public internet only."""

import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from worker.media.addresses import UnusableURL, is_public_address, parse_web_url

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

# Returns whether the worker may connect to a network address.
AddressFilter = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ContentTypes:
    """Content types that a fetcher accepts.

    Args:
        prefixes: Prefixes of the accepted types. The first is assumed if a response has no type.
        noun: The kind of file, for messages.
    """

    prefixes: tuple[str, ...]
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

    Args:
        allowed_domains: The only allowed hosts. If empty, all hosts are allowed.
        is_allowed: Returns whether the worker may connect to a network address.
        create_resolver: Creates the resolver of host names.
        types: The accepted content types.
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
        """Return the content of a URL. Errors are those of ``download``."""
        body = bytearray()
        await self.download(url, budget, body.extend)
        return bytes(body)

    async def download(self, url: str, budget: SizeBudget, write: Callable[[bytes], Any]) -> None:
        """Fetch the content of a URL, and call ``write`` with each chunk.

        The caller sets the timeout.

        Raises:
            UnusableURL: If the file can't be fetched. The message names neither URL nor address.
            Exception: The budget's error, if the file is too large.
        """
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
                await self._follow_redirects(session, self._parse_allowed_url(url), budget, write)
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
        url: URL,
        budget: SizeBudget,
        write: Callable[[bytes], Any],
    ) -> None:
        for _ in range(MAX_REDIRECTS + 1):
            async with session.get(url, allow_redirects=False) as response:
                if response.status not in REDIRECT_STATUSES:
                    return await self._read_body(response, budget, write)
                location = response.headers.get("Location", "")
                url = self._parse_allowed_url(
                    str(url.join(URL(location, encoded=location.isascii())))
                )
        raise UnusableURL(f"its host redirects more than {MAX_REDIRECTS} times")

    async def _read_body(
        self, response: aiohttp.ClientResponse, budget: SizeBudget, write: Callable[[bytes], Any]
    ) -> None:
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
