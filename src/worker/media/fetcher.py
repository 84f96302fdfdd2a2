"""Fetches media, and other files, from the public internet, and from nowhere else."""

import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from worker.media.addresses import Unusable, is_public, parsed

MOST_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
CHUNK_BYTES = 64 * 1024

HEADERS = {
    "User-Agent": "llm-worker",
    # Else a small answer could become a large one.
    "Accept-Encoding": "identity",
}
# What servers call files that they know nothing of.
UNKNOWN = ("application/octet-stream", "binary/octet-stream")
# One message for a name that nobody has, and one that only a network inside has.
NO_HOST = "its host has no address on the public internet"

# Says of a network address whether a connection to it is allowed.
Allows = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Types:
    """What is fetched, in servers' words.

    Args:
        prefixes: of the content types; the first stands for one that the server does not tell.
        noun: what messages call it.
    """

    prefixes: tuple[str, ...]
    noun: str


MEDIA = Types(("image/", "video/", "audio/", *UNKNOWN), "an image, a video or audio")


class Room(Protocol):
    """How many bytes a file may still have; both raise an error for what is too large."""

    def expect(self, count: int) -> None:
        """Refuse so many further bytes before they arrive."""

    def take(self, count: int) -> None:
        """Count bytes that have arrived."""


class _Checked(AbstractResolver):
    """Refuses a name that has any address that is not allowed."""

    def __init__(self, resolver: AbstractResolver, allows: Allows) -> None:
        self._resolver = resolver
        self._allows = allows

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not found or not all(self._allows(one["host"]) for one in found):
            raise Unusable(NO_HOST)
        return found

    async def close(self) -> None:
        await self._resolver.close()


class Fetcher:
    """Fetches one file after the other, each with a connection of its own.

    Args:
        domains: the only hosts that are allowed; empty for all.
        allows: says which addresses are.
        resolver: makes what looks names up.
        types: what is fetched.
    """

    def __init__(
        self,
        domains: Collection[str] = (),
        *,
        allows: Allows = is_public,
        resolver: Callable[[], AbstractResolver] = aiohttp.ThreadedResolver,
        types: Types = MEDIA,
    ) -> None:
        self._domains = {domain.lower() for domain in domains}
        self._allows = allows
        self._resolver = resolver
        self._types = types

    async def fetch(self, text: str, room: Room) -> bytes:
        """Return what a URL names; see ``download``."""
        body = bytearray()
        await self.download(text, room, body.extend)
        return bytes(body)

    async def download(self, text: str, room: Room, write: Callable[[bytes], Any]) -> None:
        """Fetch what a URL names, in parts. The caller bounds the time.

        Args:
            text: the URL.
            room: how many bytes it may have.
            write: takes each part.

        Raises:
            Unusable: with the reason, which holds nothing of the URL and no address.
        """
        connector = aiohttp.TCPConnector(
            resolver=_Checked(self._resolver(), self._allows),
            use_dns_cache=False,
            force_close=True,
            socket_factory=self._socket,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            headers=HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # neither a proxy nor passwords
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            async with session:
                await self._follow(session, self._parsed(text), room, write)
        except aiohttp.ClientConnectorDNSError:
            raise Unusable(NO_HOST) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, Unusable):
                raise
            raise Unusable("it could not be fetched from its host") from None

    def _parsed(self, text: str) -> URL:
        url = parsed(text)
        host = (url.raw_host or "").lower().removesuffix(".")
        if self._domains and host not in self._domains:
            raise Unusable("its host is none of ALLOWED_MEDIA_DOMAINS")
        return url

    def _socket(self, info: Any) -> socket.socket:
        """Open a socket for an address: the last look at it, however it was found."""
        family, type_, protocol, _, address = info
        if not self._allows(address[0]):
            raise Unusable(NO_HOST)
        return socket.socket(family, type_, protocol)

    async def _follow(
        self, session: aiohttp.ClientSession, url: URL, room: Room, write: Callable[[bytes], Any]
    ) -> None:
        for _ in range(MOST_REDIRECTS + 1):
            async with session.get(url, allow_redirects=False) as response:
                if response.status not in REDIRECTS:
                    return await self._read(response, room, write)
                location = response.headers.get("Location", "")
                url = self._parsed(str(url.join(URL(location, encoded=location.isascii()))))
        raise Unusable(f"its host redirects more than {MOST_REDIRECTS} times")

    async def _read(
        self, response: aiohttp.ClientResponse, room: Room, write: Callable[[bytes], Any]
    ) -> None:
        if response.status != 200:
            raise Unusable(f"its host answers {response.status}")
        types = self._types
        type_ = response.headers.get("Content-Type", types.prefixes[0]).strip().lower()
        if not type_.startswith(types.prefixes):
            raise Unusable(f"its host does not say that it is {types.noun}")
        room.expect(response.content_length or 0)
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            room.take(len(chunk))
            write(chunk)
