"""What files may be, and how large, before anything in them is decoded."""

import base64
import io
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy
import pytest
from PIL import Image
from support.media import (
    FILE,
    MESSAGES,
    as_url,
    body,
    bomb,
    data_url,
    image,
    media,
    refusal,
    values,
)
from support.tables.attacks.media import SESSION

from worker.engine.run.requests.media import EXPORTS
from worker.media import Limits

UNREADABLE = "can't be read: Input should be"
WAVE = b"RIFF\x24\0\0\0WAVEfmt "
TAG = b"ID3\x04\0\0\0\0\0\x05title"


@pytest.mark.parametrize(
    ("file", "pixels"),
    [(bomb(), "64,000,000"), (bomb(65_000, 65_000), "more than 178,956,970")],
    ids=["large", "huge"],
)
async def test_an_image_of_too_many_pixels_is_refused_by_its_head(
    media_host: Any, file: bytes, pixels: str
) -> None:
    message = f"{pixels} pixels, and at most 40,000,000 are taken (VLLM_MAX_IMAGE_PIXELS)"
    for url in (media_host(file), as_url(file)):
        assert await refusal(media(), body(url)) == message
    # An operator can take images of any size.
    if pixels == "64,000,000":
        assert await values(media(Limits(pixels=0)), body(as_url(file)))


async def test_all_images_of_a_request_together_have_eight_times_the_pixels() -> None:
    own = media(Limits(pixels=1_200))
    assert len(await values(own, body(*[data_url(40, 30)] * 8))) == 8
    message = await refusal(own, body(*[data_url(40, 30)] * 9))
    assert "10,800 pixels in the media of the request so far, and at most 9,600" in message


@pytest.mark.parametrize(
    "url",
    [
        *("data:", "data:image/png", "data:image/png;base64", "data:image/png,abc"),
        *(f"data:image/png;base64,{text}" for text in ("", "AAAA", "A", "AA AA")),
        "data:image/png;base64;x," + as_url(FILE).partition(",")[2],
        as_url(FILE)[:60],
        as_url(b"%!PS-Adobe-3.0 EPSF-3.0"),
        as_url(b"<svg/>"),
        # Base64 with something else in it, and an image that vLLM is not shown.
        as_url(FILE).replace(",", ",!"),
        as_url(image(format_="PPM")),
    ],
)
async def test_a_data_url_without_an_image_is_refused(url: str) -> None:
    assert UNREADABLE in await refusal(media(), body(url))


async def test_the_size_of_a_data_url_is_limited() -> None:
    own = media(Limits(megabytes=1))
    message = await refusal(own, body(as_url(FILE + bytes(1_000_000))))
    assert message.endswith("bytes, and at most 1,000,000 are taken (MEDIA_MAX_MB)")


# Videos:


async def test_images_in_a_row_are_a_video() -> None:
    encoded = base64.b64encode(image(format_="JPEG")).decode()
    url = f"data:video/jpeg;base64,{encoded},{encoded}"
    assert await values(media(), body(url, kind="video")) == [url]
    many = "data:video/jpeg;base64," + ",".join([encoded] * 258)
    assert "base64" in await refusal(media(), body(many, kind="video"))
    large = base64.b64encode(bomb()).decode()
    url = f"data:video/jpeg;base64,{encoded},{large}"
    assert "VLLM_MAX_IMAGE_PIXELS" in await refusal(media(), body(url, kind="video"))


@pytest.mark.parametrize("kind", ["image", "video"])
async def test_the_pixels_of_all_frames_of_a_moving_image_are_limited(kind: str) -> None:
    file = io.BytesIO()
    frames = [Image.new("P", (40, 30), index) for index in range(3)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    url = as_url(file.getvalue(), "image/gif")
    assert await values(media(), body(url, kind=kind)) == [url]
    assert "1,200 pixels" in await refusal(media(Limits(pixels=1_000)), body(url, kind=kind))


def video(frames: int, code: str, ending: str) -> bytes:
    writer = cv2.VideoWriter_fourcc(*code)  # type: ignore[attr-defined]  # not in its types
    with tempfile.NamedTemporaryFile(suffix=ending) as file:
        video = cv2.VideoWriter(file.name, writer, 25, (64, 48))
        for _ in range(frames):
            video.write(numpy.zeros((48, 64, 3), numpy.uint8))
        video.release()
        return Path(file.name).read_bytes()


async def test_the_pixels_of_all_frames_that_are_shown_of_a_video_are_limited() -> None:
    small = as_url(video(6, "mp4v", ".mp4"), "video/mp4")
    assert await values(media(), body(small, kind="video")) == [small]
    message = await refusal(media(Limits(pixels=2_000)), body(small, kind="video"))
    so_far = "18,432 pixels in the media of the request so far, and at most 16,000"
    assert message.startswith(so_far)
    # Of a long video a share is shown.
    long = as_url(video(100, "MJPG", ".avi"), "video/x-msvideo")
    assert await values(media(Limits(pixels=13_000)), body(long, kind="video")) == [long]


@pytest.mark.parametrize(
    ("code", "ending", "type_"),
    [
        ("mp4v", ".mp4", "video/mp4"),
        ("mp4v", ".mov", "video/mp4"),
        ("mp4v", ".3gp", "video/mp4"),
        ("VP80", ".webm", "video/webm"),
        ("mp4v", ".mkv", "video/webm"),
        ("MJPG", ".avi", "video/x-msvideo"),
        ("PIM1", ".mpg", "video/mpeg"),
        ("mpg2", ".vob", "video/mpeg"),
        ("PIM1", ".m1v", "video/mpeg"),
        ("FLV1", ".flv", "video/x-flv"),
        ("VP80", ".ogv", "video/ogg"),
    ],
)
async def test_a_video_of_every_kind_that_is_known_can_be_opened(
    media_host: Any, code: str, ending: str, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the start sets it: OpenCV reads it whenever it opens a file.
    name = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
    monkeypatch.setenv(name, EXPORTS[name])
    file = video(6, code, ending)
    assert await values(media(), body(media_host(file, type_), kind="video")) == [
        as_url(file, type_)
    ]


@pytest.mark.parametrize("broken", [b"\0\0\0\x18ftypmp42" + bytes(1_000), b"OggS\0\2" + bytes(100)])
async def test_a_video_that_can_not_be_opened_is_refused(broken: bytes) -> None:
    message = await refusal(media(), body(as_url(broken, "video/mp4"), kind="video"))
    assert f"{UNREADABLE} MP4" in message


# Audio:


@pytest.mark.parametrize(
    ("file", "type_"),
    [
        (WAVE, "audio/wav"),
        (b"RF64\xff\xff\xff\xffWAVEds64", "audio/wav"),
        (b"fLaC\0\0\0\x22\x12\0", "audio/flac"),
        (b"OggS\0\x02\0\0\0\0\0\0\0\0", "audio/ogg"),
        (b"\0\0\0\x1cftypM4A \0\0\x02\0", "audio/mp4"),
        (bytes.fromhex("1a45dfa39f4286810142f7810142f2810442f38108428284") + b"webm", "audio/webm"),
        (b"FORM\0\x01@.AIFFCOMM", "audio/aiff"),
        (b"\xff\xfb\x90\x64", "audio/mpeg"),
        (b"\xff\xe3\x38\xc4", "audio/mpeg"),
        (TAG + b"\xff\xf3\x70\xc4", "audio/mpeg"),
        (TAG + bytes(100) + b"\xff\xfb\x90\x64", "audio/mpeg"),
        (b"ID3\x04\0\x10\0\0\0\x05title3DI\x04\0\x10\0\0\0\x05\xff\xfb\x90", "audio/mpeg"),
        (b"\xff\xf1\x50\x40", "audio/aac"),
        (TAG + b"\xff\xf1\x50\x40", "audio/aac"),
    ],
)
async def test_audio_is_known_by_its_beginning_with_a_tag_before_it_or_without(
    media_host: Any, file: bytes, type_: str
) -> None:
    url = media_host(file, "audio/of-any-type")
    assert await values(media(), body(url, kind="audio")) == [as_url(file, type_)]


async def test_audio_in_base64_is_checked_likewise() -> None:
    def request(data: bytes) -> dict[str, Any]:
        sound = {"data": base64.b64encode(data).decode(), "format": "wav"}
        part = {"type": "input_audio", "input_audio": sound}
        return {"messages": [{"role": "user", "content": [part]}]}

    assert await media().inlined(request(WAVE), MESSAGES) == (request(WAVE), True)
    assert UNREADABLE in await refusal(media(), request(b"#EXTM3U"))


BEGINNINGS = (
    *(b"xxxxxxxxAVI ", b"RIFF\1\1\1\1AVI LIST", b"xxxxftypmp42", b"FLV\1\5\0\0\0\t\0\0\0\0"),
    *(b"\x1a\x45\xdf\xa3", b"\x1a\x45\xdf\xa3\x87\x42\x82\x84webm", b"OggS", b"OggS\0\x02"),
    *(b"xxxxxxxxWAVE", WAVE, b"ID3", TAG, TAG + b"\xff\xfb\x90\x64", b"fLaC", b"FORM"),
    *(b"\xff\xfb\x90\x64", b"\xff\xf1\x50\x80"),
)


@pytest.mark.parametrize(
    "text",
    [
        *(beginning + SESSION for beginning in BEGINNINGS),
        b"#EXTM3U\nAVI \n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1/\n",
        b"#EXTftyp\n",
        b"<MPD    WAVE xmlns='urn:mpeg:dash:schema:mpd:2011'>",
        TAG + b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/\n",
        TAG + b"ffconcat version 1.0\nfile /etc/passwd\n",
        TAG + b"<MPD xmlns='urn:mpeg:dash:schema:mpd:2011'>",
        *(FILE, b"", b"ffconcat version 1.0"),
    ],
)
@pytest.mark.parametrize("kind", ["video", "audio"])
async def test_text_behind_the_beginning_of_a_medium_is_refused(text: bytes, kind: str) -> None:
    request = body(as_url(text, f"{kind}/mp4"), kind=kind)
    assert UNREADABLE in await refusal(media(), request)
