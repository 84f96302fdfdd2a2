"""Images for requests, and what the worker makes of requests with them."""

import base64
import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from support.network import Names
from worker.errors import InvalidInput
from worker.media import Limits, Media
from worker.media.fetcher import Fetcher
from worker.media.walker import Kind

MESSAGES = ("messages",)
KINDS: tuple[Kind, ...] = ("image", "video", "audio")


def image(width: int = 40, height: int = 30, colour: str = "red", format_: str = "PNG") -> bytes:
    """Return an image's file."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, format_)
    return file.getvalue()


def bomb(width: int = 8_000, height: int = 8_000) -> bytes:
    """Return the head of an image that would have very many pixels."""
    head = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 1, 0, 0, 0, 0)
    chunk = struct.pack(">I", len(head) - 4) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I4s", 0, b"IDAT") + bytes(4)


def as_url(file: bytes, type_: str = "image/png") -> str:
    """Return a file as a data URL."""
    return f"data:{type_};base64," + base64.b64encode(file).decode()


def data_url(width: int = 40, height: int = 30, colour: str = "red") -> str:
    """Return an image as a data URL."""
    return as_url(image(width, height, colour))


FILE = image()


def media(limits: Limits | None = None, domains: tuple[str, ...] = (), kinds: Any = KINDS) -> Media:
    """Return what fetches from hosts that lie at 127.0.0.9, and from no others."""
    names = Names({"host.example": [["127.0.0.9"]], "other.example": [["127.0.0.9"]]})
    fetcher = Fetcher(
        domains, resolver=lambda: names, allows=lambda address: address == "127.0.0.9"
    )
    return Media(limits or Limits(), fetcher, kinds)


def body(*urls: str, kind: str = "image") -> dict[str, Any]:
    """Return a chat with media."""
    parts = [{"type": f"{kind}_url", f"{kind}_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


async def values(own: Media, request: dict[str, Any]) -> list[str]:
    """Return the URLs in what a chat becomes."""
    after, shows = await own.inlined(request, MESSAGES)
    assert shows
    parts = after["messages"][0]["content"]
    return [part[part["type"]]["url"] for part in parts]


async def refusal(own: Media, request: dict[str, Any]) -> str:
    """Return the message with which a chat is refused, without the place that it names."""
    with pytest.raises(InvalidInput) as caught:
        await own.inlined(request, MESSAGES)
    assert caught.value.param is not None
    assert caught.value.message.startswith(f"{caught.value.param}: ")
    return caught.value.message.removeprefix(f"{caught.value.param}: ")
