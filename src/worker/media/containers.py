"""Recognizes videos and audio by their first bytes, as strictly as their formats define them.

vLLM decodes them with FFmpeg, which guesses the format of a file. If FFmpeg takes a file for a
playlist or a session description, it connects to the addresses in the file.
"""

import re

from worker.media.walker import MediaKind

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
