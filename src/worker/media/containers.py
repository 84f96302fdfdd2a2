"""Recognises videos and audio by their first bytes, as strictly as their formats define them.

FFmpeg, which vLLM decodes them with, guesses what a file is. It connects to the addresses in what
it takes for a playlist or a session description.
"""

import re

from worker.media.walker import Kind

_EBML = rb"\x1a\x45\xdf\xa3.{1,128}?\x42\x82.{1,8}?(?:webm|matroska)"
_OGG = rb"OggS\0[\0-\x07]"
_MP4 = rb"\0\0..ftyp"

_TYPES: dict[Kind, tuple[tuple[bytes, str], ...]] = {
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
# The beginnings of files, and their types.
BEGINNINGS = {
    kind: [(re.compile(beginning, re.DOTALL), type_) for beginning, type_ in pairs]
    for kind, pairs in _TYPES.items()
}
# The tag before audio: its flags and its length, of seven bits a byte. Programs that shorten a tag
# leave zeros behind it.
_TAG = re.compile(rb"ID3[\x02-\x04].(.)([\0-\x7f]{4})", re.DOTALL)
_HEAD_BYTES, _WITH_FOOTER = 10, 0x10

# A line of a session description (SDP). FFmpeg reads a file as one, whatever its other lines are,
# if it knows nothing better and the file does not begin with a zero.
_SESSION = b"c=IN IP"

# FFmpeg's names of the videos above.
DEMUXERS = ("mov", "matroska", "avi", "gif", "mpeg", "mpegvideo", "flv", "ogg")


def type_of(kind: Kind, file: bytes) -> str | None:
    """Return the type of a video or audio; None: it is none of the known ones."""
    if _SESSION in file and not file.startswith(b"\0"):
        return None
    begin = _after_tag(file) if kind == "audio" else 0
    return next((type_ for known, type_ in BEGINNINGS[kind] if known.match(file, begin)), None)


def _after_tag(file: bytes) -> int:
    """Return where audio begins."""
    tag = _TAG.match(file)
    if tag is None:
        return 0
    flags, length = tag[1][0], 0
    for byte in tag[2]:
        length = length << 7 | byte
    end = tag.end() + length + (_HEAD_BYTES if flags & _WITH_FOOTER else 0)
    return len(file) - len(file[end:].lstrip(b"\0"))
