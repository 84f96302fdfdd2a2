"""Decodes base64 media and enforces the limits on them before vLLM decodes the files.

Images are opened with Pillow, as vLLM does. Videos and audio are recognized by their first bytes,
as strictly as their formats define them: vLLM decodes them with FFmpeg, which guesses the format of
a file. If FFmpeg takes a file for a playlist or a session description, it connects to the addresses
in the file.
"""

import base64
import binascii
import io
import re
from dataclasses import dataclass
from typing import Any

from PIL import Image

from worker.errors import InvalidInput, field_error
from worker.media.walker import MediaKind

MEGABYTE = 1_000_000
# The limits for all media of a request together, as multiples of the limits for one medium. Each
# sampled frame of a video counts as an image.
TOTAL_BYTES_FACTOR, TOTAL_PIXELS_FACTOR = 4, 8
# Names of the settings of the limits for one medium, for messages.
MEGABYTES_SETTING, PIXELS_SETTING = "MEDIA_MAX_MB", "VLLM_MAX_IMAGE_PIXELS"
TOTAL_TEXT = "in the media of the request so far"
# Number of frames that vLLM samples from a video.
MAX_SAMPLED_FRAMES = 32

# Formats that Pillow decodes in this process, and that vLLM passes to models.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
# Exceptions that Pillow raises for a file that it can't read.
PILLOW_ERRORS = (EOFError, MemoryError, OSError, RuntimeError, SyntaxError, ValueError)
SUPPORTED_FORMATS: dict[MediaKind, str] = {
    "image": "PNG, JPEG, WebP, GIF, BMP, TIFF or AVIF",
    "video": "MP4, WebM, Matroska, AVI, MPEG, FLV, Ogg or GIF",
    "audio": "WAV, MP3, FLAC, Ogg, AAC, MP4, WebM or AIFF",
}
# Media type of a video that vLLM accepts as JPEG images in base64, separated by commas, and the
# maximum number of its images.
JPEG_FRAMES_TYPE = "video/jpeg"
MAX_JPEG_FRAMES = 256

_EBML = rb"\x1a\x45\xdf\xa3.{1,128}?\x42\x82.{1,8}?(?:webm|matroska)"
_OGG = rb"OggS\0[\0-\x07]"
_MP4 = rb"\0\0..ftyp"

_TYPES: dict[MediaKind, tuple[tuple[bytes, str], ...]] = {
    "video": (
        (_MP4, "video/mp4"),
        (_EBML, "video/webm"),
        (rb"RIFF....AVI LIST", "video/x-msvideo"),
        (rb"GIF8[79]a", "image/gif"),
        (rb"\0\0\x01\xba[\x20-\x2f\x40-\x7f]", "video/mpeg"),
        (rb"\0\0\x01\xb3", "video/mpeg"),
        (rb"FLV\x01[\0-\x05]\0\0\0\x09\0\0\0\0", "video/x-flv"),
        (_OGG, "video/ogg"),
    ),
    "audio": (
        (rb"(?:RIF[FX]|RF64|BW64)....WAVE", "audio/wav"),
        (rb"fLaC[\0\x80]\0\0\x22", "audio/flac"),
        (_OGG, "audio/ogg"),
        (_MP4, "audio/mp4"),
        (_EBML, "audio/webm"),
        (rb"FORM....AIF[FC]", "audio/aiff"),
        (rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xef]", "audio/mpeg"),
        (rb"\xff[\xf0\xf1\xf8\xf9]", "audio/aac"),
    ),
}
# Patterns of the first bytes of a file, and the media type of each.
SIGNATURES = {
    kind: [(re.compile(pattern, re.DOTALL), type_) for pattern, type_ in pairs]
    for kind, pairs in _TYPES.items()
}
# The ID3 tag before audio: its flags and its length, with seven bits in each byte. Programs that
# shorten a tag leave zeros behind it.
_ID3_TAG = re.compile(rb"ID3[\x02-\x04].(.)([\0-\x7f]{4})", re.DOTALL)
_ID3_FOOTER_BYTES, _ID3_FOOTER_FLAG = 10, 0x10

# A line of a session description (SDP). If FFmpeg recognizes no other format and the file does not
# begin with a zero, this line is enough for FFmpeg to read the file as a session description.
_SDP_LINE = b"c=IN IP"

# FFmpeg's names for the video formats in ``SIGNATURES``.
DEMUXERS = ("mov", "matroska", "avi", "gif", "mpeg", "mpegvideo", "flv", "ogg")


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits for the media of a request."""

    allow_remote: bool = True
    megabytes: int = 20  # of one medium; four times as much for all media together
    parts: int = 16
    timeout_s: float = 10  # to fetch and check all media
    pixels: int = 40_000_000  # of an image; eight times as many for all media; 0 for no limit


@dataclass(slots=True)
class MediaTotals:
    """The bytes and pixels of all media that have been read for a request."""

    bytes: int = 0
    pixels: int = 0


class MediaBudget:
    """The bytes and pixels that one medium of a request may use.

    ``name`` is the path of the medium in the body, for messages. All budgets of a request share
    ``totals``.
    """

    def __init__(self, limits: MediaLimits, name: str, totals: MediaTotals) -> None:
        self.name = name
        self._limits = limits
        self._totals = totals
        self._bytes = 0

    @property
    def timeout_s(self) -> float:
        return self._limits.timeout_s

    def check_bytes(self, count: int) -> None:
        limit = self._limits.megabytes * MEGABYTE
        self._check_limit(self._bytes + count, limit, "bytes", MEGABYTES_SETTING)
        total = self._totals.bytes + count
        self._check_limit(
            total, TOTAL_BYTES_FACTOR * limit, f"bytes {TOTAL_TEXT}", MEGABYTES_SETTING
        )

    def add_bytes(self, count: int) -> None:
        self.check_bytes(count)
        self._bytes += count
        self._totals.bytes += count

    def add_pixels(self, width: int, height: int, frames: int = 1) -> None:
        """Count pixels; raise an error above a limit, which for a video is only the request's."""
        if not (limit := self._limits.pixels):
            return
        if frames == 1:
            self._check_limit(width * height, limit, "pixels", PIXELS_SETTING)
        self._totals.pixels += width * height * frames
        total = self._totals.pixels
        self._check_limit(
            total, TOTAL_PIXELS_FACTOR * limit, f"pixels {TOTAL_TEXT}", PIXELS_SETTING
        )

    def too_many_pixels_error(self, pixels: int) -> InvalidInput:
        limit = self._limits.pixels or pixels
        return self._limit_error(f"more than {pixels:,} pixels", limit, PIXELS_SETTING)

    def unreadable_error(self, expected: str) -> InvalidInput:
        return field_error(self.name, f"can't be read: Input should be {expected}")

    def _check_limit(self, size: int, limit: int, unit: str, setting: str) -> None:
        if size > limit:
            raise self._limit_error(f"{size:,} {unit}", limit, setting)

    def _limit_error(self, size: str, limit: int, setting: str) -> InvalidInput:
        return field_error(self.name, f"{size}, and at most {limit:,} are accepted ({setting})")


def read_data_url(kind: MediaKind, url: str, budget: MediaBudget) -> tuple[MediaKind, list[bytes]]:
    """Return the kind and the files of a ``data:`` URL: one file, or the images of a JPEG video."""
    head, comma, data = url[len("data:") :].partition(",")
    type_, _, encoding = head.rpartition(";")
    if not comma or encoding != "base64":
        raise budget.unreadable_error("a data: URL in base64 (data:image/png;base64,...)")
    if kind == "video" and type_.partition(";")[0].lower() == JPEG_FRAMES_TYPE:
        return "image", [decode_base64(image, budget) for image in data.split(",", MAX_JPEG_FRAMES)]
    return kind, [decode_base64(data, budget)]


def decode_base64(data: str, budget: MediaBudget) -> bytes:
    """Decode base64 as strictly as vLLM does."""
    budget.add_bytes(len(data) * 3 // 4)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise budget.unreadable_error("base64") from None


def check_file(kind: MediaKind, file: bytes, budget: MediaBudget) -> str:
    """Check a file's format and pixels, and return its media type; decode only its header."""
    if kind == "image":
        return _check_image(file, budget)
    type_ = detect_type(kind, file)
    if type_ is None:
        raise budget.unreadable_error(SUPPORTED_FORMATS[kind])
    if type_ == "image/gif":
        _check_image(file, budget)
    elif kind == "video":
        _check_video(file, budget)
    return type_


def _check_image(file: bytes, budget: MediaBudget) -> str:
    try:
        with Image.open(io.BytesIO(file), formats=IMAGE_FORMATS) as image:
            width, height, format_ = image.width, image.height, image.format
    except Image.DecompressionBombError:
        # Pillow doesn't report the number of pixels.
        raise budget.too_many_pixels_error(2 * (Image.MAX_IMAGE_PIXELS or 0)) from None
    except PILLOW_ERRORS:
        raise budget.unreadable_error(SUPPORTED_FORMATS["image"]) from None
    budget.add_pixels(width, height)
    return Image.MIME.get(format_ or "", "image/png")


def _check_video(file: bytes, budget: MediaBudget) -> None:
    try:
        import cv2  # noqa: PLC0415 - vLLM reads videos with it; it takes long to import
    except ImportError:
        return
    source: Any = io.BytesIO(file)
    options = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int(budget.timeout_s * 1_000)]
    video = cv2.VideoCapture(source, cv2.CAP_FFMPEG, options)
    try:
        if not video.isOpened():
            raise budget.unreadable_error(SUPPORTED_FORMATS["video"])
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
    budget.add_pixels(width, height, max(2, min(frames, MAX_SAMPLED_FRAMES)))


def detect_type(kind: MediaKind, file: bytes) -> str | None:
    """Return a file's media type; None if it is unknown, or could be a session description."""
    if _SDP_LINE in file and not file.startswith(b"\0"):
        return None
    offset = _audio_offset(file) if kind == "audio" else 0
    return next((type_ for pattern, type_ in SIGNATURES[kind] if pattern.match(file, offset)), None)


def _audio_offset(file: bytes) -> int:
    """Return the offset of the first byte of audio, after an ID3 tag and the zeros behind it."""
    tag = _ID3_TAG.match(file)
    if tag is None:
        return 0
    flags, length = tag[1][0], 0
    for byte in tag[2]:
        length = length << 7 | byte
    end = tag.end() + length + (_ID3_FOOTER_BYTES if flags & _ID3_FOOTER_FLAG else 0)
    return len(file) - len(file[end:].lstrip(b"\0"))
