"""What media hold: base64 to bytes, and the limits that are checked before anything is decoded."""

import base64
import binascii
import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from worker.errors import InvalidInput
from worker.media.containers import type_of
from worker.media.walker import Kind

MEGABYTE = 1_000_000
# All media of a request together may have so many times what one may have; the frames of a video
# count as so many images.
TOGETHER_BYTES, TOGETHER_PIXELS = 4, 8
# The settings of the limits, for messages.
MEGABYTES, PIXELS = "MEDIA_MAX_MB", "VLLM_MAX_IMAGE_PIXELS"
SO_FAR = "in the media of the request so far"
# Frames that vLLM takes of a video.
FRAMES = 32

# What Pillow reads itself, in this process, and what vLLM shows to models.
IMAGES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
# What Pillow raises for a file that it can't read.
UNREADABLE = (
    EOFError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    ValueError,
)
KNOWN: dict[Kind, str] = {
    "image": "PNG, JPEG, WebP, GIF, BMP, TIFF or AVIF",
    "video": "MP4, WebM, Matroska, AVI, MPEG, FLV, Ogg or GIF",
    "audio": "WAV, MP3, FLAC, Ogg, AAC, MP4, WebM or AIFF",
}
# vLLM takes images in a row as a video, each in base64.
IN_A_ROW = "video/jpeg"
MOST_IN_A_ROW = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request's media may amount to.

    Args:
        remote: whether they are fetched from URLs.
        megabytes: of one medium; all together may have four times as many.
        parts: how many.
        seconds: for fetching and checking all of them.
        pixels: of one image; all together may have eight times as many. 0 for any number.
    """

    remote: bool = True
    megabytes: int = 20
    parts: int = 16
    seconds: float = 10
    pixels: int = 40_000_000


@dataclass(slots=True)
class Sums:
    """What all media of a request have so far."""

    bytes: int = 0
    pixels: int = 0


class Room:
    """What one medium of a request may still have; every refusal names the limit and the size.

    Args:
        limits: of the request.
        name: where the medium stands.
        sums: of the request, shared by its media.
    """

    def __init__(self, limits: Limits, name: str, sums: Sums) -> None:
        self.name = name
        self._limits = limits
        self._sums = sums
        self._bytes = 0

    @property
    def seconds(self) -> float:
        """The most that a check of the medium takes."""
        return self._limits.seconds

    def expect(self, count: int) -> None:
        """Refuse so many further bytes before they arrive."""
        most = self._limits.megabytes * MEGABYTE
        self._hold(self._bytes + count, most, "bytes", MEGABYTES)
        together = self._sums.bytes + count
        self._hold(together, TOGETHER_BYTES * most, f"bytes {SO_FAR}", MEGABYTES)

    def take(self, count: int) -> None:
        """Count bytes that have arrived."""
        self.expect(count)
        self._bytes += count
        self._sums.bytes += count

    def show(self, width: int, height: int, frames: int = 1) -> None:
        """Count the pixels of an image, or of a video's frames: only their sum is limited."""
        if not (most := self._limits.pixels):
            return
        if frames == 1:
            self._hold(width * height, most, "pixels", PIXELS)
        self._sums.pixels += width * height * frames
        self._hold(self._sums.pixels, TOGETHER_PIXELS * most, f"pixels {SO_FAR}", PIXELS)

    def bomb(self, pixels: int) -> InvalidInput:
        """Return the error for an image that has more pixels than are ever taken."""
        most = self._limits.pixels or pixels
        return self._full(f"more than {pixels:,} pixels", most, PIXELS)

    def unreadable(self, wanted: str) -> InvalidInput:
        """Return the error for what can't be read."""
        message = f"{self.name}: can't be read: Input should be {wanted}"
        return InvalidInput(message, param=self.name)

    def _hold(self, size: int, most: int, unit: str, setting: str) -> None:
        if size > most:
            raise self._full(f"{size:,} {unit}", most, setting)

    def _full(self, size: str, most: int, setting: str) -> InvalidInput:
        message = f"{self.name}: {size}, and at most {most:,} are taken ({setting})"
        return InvalidInput(message, param=self.name)


def decoded(kind: Kind, url: str, room: Room) -> tuple[Kind, list[bytes]]:
    """Return the files in a ``data:`` URL, one or the images of a video, and their kind.

    Raises:
        InvalidInput: it is no base64, or too large.
    """
    head, comma, data = url[len("data:") :].partition(",")
    type_, _, encoding = head.rpartition(";")
    if not comma or encoding != "base64":
        raise room.unreadable("a data: URL in base64 (data:image/png;base64,...)")
    if kind == "video" and type_.partition(";")[0].lower() == IN_A_ROW:
        return "image", [from_base64(image, room) for image in data.split(",", MOST_IN_A_ROW)]
    return kind, [from_base64(data, room)]


def from_base64(data: str, room: Room) -> bytes:
    """Decode base64 as strictly as vLLM does.

    Raises:
        InvalidInput: it is none, or too large.
    """
    room.take(len(data) * 3 // 4)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise room.unreadable("base64") from None


def check(kind: Kind, file: bytes, room: Room) -> str:
    """Return the type of a file that is within all limits; nothing but its head is decoded.

    Raises:
        InvalidInput: it is none of the known types, or has too many pixels.
    """
    if kind == "image":
        return _check_image(file, room)
    type_ = type_of(kind, file)
    if type_ is None:
        raise room.unreadable(KNOWN[kind])
    if type_ == "image/gif":
        _check_image(file, room)
    elif kind == "video":
        _check_video(file, room)
    return type_


def _check_image(file: bytes, room: Room) -> str:
    try:
        with Image.open(io.BytesIO(file), formats=IMAGES) as image:
            width, height, format_ = image.width, image.height, image.format
    except Image.DecompressionBombError:
        # Pillow does not say how many.
        raise room.bomb(2 * (Image.MAX_IMAGE_PIXELS or 0)) from None
    except UNREADABLE:
        raise room.unreadable(KNOWN["image"]) from None
    room.show(width, height)
    return Image.MIME.get(format_ or "", "image/png")


def _check_video(file: bytes, room: Room) -> None:
    try:
        import cv2  # noqa: PLC0415 - vLLM reads videos with it; it takes long to import
    except ImportError:
        return
    source: Any = io.BytesIO(file)
    patience = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int(room.seconds * 1_000)]
    video = cv2.VideoCapture(source, cv2.CAP_FFMPEG, patience)
    try:
        if not video.isOpened():
            raise room.unreadable(KNOWN["video"])
        width, height, frames = (
            int(video.get(name))
            for name in (
                cv2.CAP_PROP_FRAME_WIDTH,
                cv2.CAP_PROP_FRAME_HEIGHT,
                cv2.CAP_PROP_FRAME_COUNT,
            )
        )
    finally:
        video.release()
    room.show(width, height, max(2, min(frames, FRAMES)))
