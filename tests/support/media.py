"""Images for requests, and the results of the worker's media loader."""

import base64
import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from support.network import TableResolver
from worker.errors import InvalidInput
from worker.media.contents import MediaLimits
from worker.media.fetcher import WebFetcher
from worker.media.loader import MediaLoader
from worker.media.walker import MediaKind

MESSAGES = ("messages",)
KINDS: tuple[MediaKind, ...] = ("image", "video", "audio")


def image(width: int = 40, height: int = 30, colour: str = "red", format_: str = "PNG") -> bytes:
    """Return the content of an image file."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, format_)
    return file.getvalue()


def bomb(width: int = 8_000, height: int = 8_000) -> bytes:
    """Return the head of an image file with a huge number of pixels."""
    head = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 1, 0, 0, 0, 0)
    chunk = struct.pack(">I", len(head) - 4) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I4s", 0, b"IDAT") + bytes(4)


def to_data_url(file: bytes, type_: str = "image/png") -> str:
    """Return a file as a data URL."""
    return f"data:{type_};base64," + base64.b64encode(file).decode()


def data_url(width: int = 40, height: int = 30, colour: str = "red") -> str:
    """Return an image as a data URL."""
    return to_data_url(image(width, height, colour))


IMAGE = image()


def media_loader(
    limits: MediaLimits | None = None, domains: tuple[str, ...] = (), kinds: Any = KINDS
) -> MediaLoader:
    """Return a loader that fetches from two hosts at 127.0.0.9, and from no others."""
    names = TableResolver({"host.example": [["127.0.0.9"]], "other.example": [["127.0.0.9"]]})
    fetcher = WebFetcher(
        domains, create_resolver=lambda: names, is_allowed=lambda address: address == "127.0.0.9"
    )
    return MediaLoader(limits or MediaLimits(), fetcher, kinds)


def chat_body(*urls: str, kind: str = "image") -> dict[str, Any]:
    """Return a chat request with media."""
    parts = [{"type": f"{kind}_url", f"{kind}_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


async def inlined_urls(loader: MediaLoader, request: dict[str, Any]) -> list[str]:
    """Return the URLs in a chat request after the loader has inlined its media."""
    inlined, has_media = await loader.inline_media(request, MESSAGES)
    assert has_media
    parts = inlined["messages"][0]["content"]
    return [part[part["type"]]["url"] for part in parts]


async def refusal_message(loader: MediaLoader, request: dict[str, Any]) -> str:
    """Return the message that refuses a chat request, without the field that it names."""
    with pytest.raises(InvalidInput) as caught:
        await loader.inline_media(request, MESSAGES)
    assert caught.value.param is not None
    assert caught.value.message.startswith(f"{caught.value.param}: ")
    return caught.value.message.removeprefix(f"{caught.value.param}: ")
