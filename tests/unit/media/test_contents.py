"""Accepted formats and sizes of files, checked before any of their content is decoded."""

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
    IMAGE,
    MESSAGES,
    bomb,
    chat_body,
    data_url,
    image,
    inlined_urls,
    media_loader,
    refusal_message,
    to_data_url,
)
from support.tables.attacks import SESSION

from worker.engine.run.requests.media import ENVIRONMENT
from worker.media.contents import MediaLimits

UNREADABLE = "can't be read: Input should be"
WAVE = b"RIFF\x24\0\0\0WAVEfmt "
ID3_TAG = b"ID3\x04\0\0\0\0\0\x05title"


@pytest.mark.parametrize(
    ("file", "pixels"),
    [(bomb(), "64,000,000"), (bomb(65_000, 65_000), "more than 178,956,970")],
    ids=["large", "huge"],
)
async def test_an_image_of_too_many_pixels_is_refused_by_its_header(
    media_host: Any, file: bytes, pixels: str
) -> None:
    message = f"{pixels} pixels, and at most 40,000,000 are accepted (VLLM_MAX_IMAGE_PIXELS)"
    for url in (media_host(file), to_data_url(file)):
        assert await refusal_message(media_loader(), chat_body(url)) == message
    # An operator can allow images of any size.
    if pixels == "64,000,000":
        assert await inlined_urls(media_loader(MediaLimits(pixels=0)), chat_body(to_data_url(file)))


async def test_all_images_of_a_request_may_have_eight_times_the_pixels_of_one() -> None:
    loader = media_loader(MediaLimits(pixels=1_200))
    assert len(await inlined_urls(loader, chat_body(*[data_url(40, 30)] * 8))) == 8
    message = await refusal_message(loader, chat_body(*[data_url(40, 30)] * 9))
    assert "10,800 pixels in the media of the request so far, and at most 9,600" in message


@pytest.mark.parametrize(
    "url",
    [
        *("data:", "data:image/png", "data:image/png;base64", "data:image/png,abc"),
        *(f"data:image/png;base64,{text}" for text in ("", "AAAA", "A", "AA AA")),
        "data:image/png;base64;x," + to_data_url(IMAGE).partition(",")[2],
        to_data_url(IMAGE)[:60],
        to_data_url(b"%!PS-Adobe-3.0 EPSF-3.0"),
        to_data_url(b"<svg/>"),
        # Base64 with other characters, and an image format that is not passed on to vLLM.
        to_data_url(IMAGE).replace(",", ",!"),
        to_data_url(image(format_="PPM")),
    ],
)
async def test_a_data_url_without_an_image_is_refused(url: str) -> None:
    assert UNREADABLE in await refusal_message(media_loader(), chat_body(url))


async def test_base64_may_be_in_lines() -> None:
    url, encoded = to_data_url(IMAGE), base64.b64encode(IMAGE).decode()
    in_lines = base64.encodebytes(IMAGE).decode().replace("\n", "\r\n ")
    urls = [url, f"data:image/png;base64,\n{in_lines}"]
    assert await inlined_urls(media_loader(), chat_body(*urls)) == [url, url]
    source = {"type": "base64", "media_type": "image/png"}
    block = {"type": "image", "source": {**source, "data": in_lines}}
    body = {"messages": [{"role": "user", "content": [block]}]}
    sent, _ = await media_loader().inline_media(body, MESSAGES)
    assert sent["messages"][0]["content"][0]["source"] == {**source, "data": encoded}


async def test_the_size_of_a_data_url_is_limited() -> None:
    loader = media_loader(MediaLimits(megabytes=1))
    message = await refusal_message(loader, chat_body(to_data_url(IMAGE + bytes(1_000_000))))
    assert message.endswith("bytes, and at most 1,000,000 are accepted (MEDIA_MAX_MB)")


# Videos:


async def test_a_sequence_of_images_is_a_video() -> None:
    encoded = base64.b64encode(image(format_="JPEG")).decode()
    url = f"data:video/jpeg;base64,{encoded},{encoded}"
    assert await inlined_urls(media_loader(), chat_body(url, kind="video")) == [url]
    many = "data:video/jpeg;base64," + ",".join([encoded] * 258)
    assert "base64" in await refusal_message(media_loader(), chat_body(many, kind="video"))
    large = base64.b64encode(bomb()).decode()
    url = f"data:video/jpeg;base64,{encoded},{large}"
    assert "VLLM_MAX_IMAGE_PIXELS" in await refusal_message(
        media_loader(), chat_body(url, kind="video")
    )


@pytest.mark.parametrize("kind", ["image", "video"])
async def test_the_pixels_of_all_frames_of_an_animated_image_are_limited(kind: str) -> None:
    file = io.BytesIO()
    frames = [Image.new("P", (40, 30), index) for index in range(3)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    url = to_data_url(file.getvalue(), "image/gif")
    assert await inlined_urls(media_loader(), chat_body(url, kind=kind)) == [url]
    assert "1,200 pixels" in await refusal_message(
        media_loader(MediaLimits(pixels=1_000)), chat_body(url, kind=kind)
    )


def encode_video(frames: int, code: str, ending: str) -> bytes:
    codec = cv2.VideoWriter_fourcc(*code)  # type: ignore[attr-defined]  # not in its types
    with tempfile.NamedTemporaryFile(suffix=ending) as file:
        writer = cv2.VideoWriter(file.name, codec, 25, (64, 48))
        for _ in range(frames):
            writer.write(numpy.zeros((48, 64, 3), numpy.uint8))
        writer.release()
        return Path(file.name).read_bytes()


async def test_the_pixels_of_all_sampled_frames_of_a_video_are_limited() -> None:
    small = to_data_url(encode_video(6, "mp4v", ".mp4"), "video/mp4")
    assert await inlined_urls(media_loader(), chat_body(small, kind="video")) == [small]
    message = await refusal_message(
        media_loader(MediaLimits(pixels=2_000)), chat_body(small, kind="video")
    )
    so_far = "18,432 pixels in the media of the request so far, and at most 16,000"
    assert message.startswith(so_far)
    # vLLM samples only some frames of a long video.
    long = to_data_url(encode_video(100, "MJPG", ".avi"), "video/x-msvideo")
    assert await inlined_urls(
        media_loader(MediaLimits(pixels=13_000)), chat_body(long, kind="video")
    ) == [long]


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
async def test_a_video_of_every_known_format_is_accepted(
    media_host: Any, code: str, ending: str, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker sets this at startup; OpenCV reads it whenever it opens a file.
    name = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
    monkeypatch.setenv(name, ENVIRONMENT[name])
    file = encode_video(6, code, ending)
    assert await inlined_urls(media_loader(), chat_body(media_host(file, type_), kind="video")) == [
        to_data_url(file, type_)
    ]


@pytest.mark.parametrize("broken", [b"\0\0\0\x18ftypmp42" + bytes(1_000), b"OggS\0\2" + bytes(100)])
async def test_a_video_that_can_not_be_opened_is_refused(broken: bytes) -> None:
    message = await refusal_message(
        media_loader(), chat_body(to_data_url(broken, "video/mp4"), kind="video")
    )
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
        (ID3_TAG + b"\xff\xf3\x70\xc4", "audio/mpeg"),
        (ID3_TAG + bytes(100) + b"\xff\xfb\x90\x64", "audio/mpeg"),
        (b"ID3\x04\0\x10\0\0\0\x05title3DI\x04\0\x10\0\0\0\x05\xff\xfb\x90", "audio/mpeg"),
        (b"\xff\xf1\x50\x40", "audio/aac"),
        (ID3_TAG + b"\xff\xf1\x50\x40", "audio/aac"),
    ],
)
async def test_audio_is_recognized_by_its_signature_with_or_without_a_tag(
    media_host: Any, file: bytes, type_: str
) -> None:
    url = media_host(file, "audio/of-any-type")
    assert await inlined_urls(media_loader(), chat_body(url, kind="audio")) == [
        to_data_url(file, type_)
    ]


async def test_audio_in_base64_is_checked() -> None:
    def make_request(data: bytes) -> dict[str, Any]:
        sound = {"data": base64.b64encode(data).decode(), "format": "wav"}
        part = {"type": "input_audio", "input_audio": sound}
        return {"messages": [{"role": "user", "content": [part]}]}

    assert await media_loader().inline_media(make_request(WAVE), MESSAGES) == (
        make_request(WAVE),
        True,
    )
    assert UNREADABLE in await refusal_message(media_loader(), make_request(b"#EXTM3U"))


SIGNATURES = (
    *(b"xxxxxxxxAVI ", b"RIFF\1\1\1\1AVI LIST", b"xxxxftypmp42", b"FLV\1\5\0\0\0\t\0\0\0\0"),
    *(b"\x1a\x45\xdf\xa3", b"\x1a\x45\xdf\xa3\x87\x42\x82\x84webm", b"OggS", b"OggS\0\x02"),
    *(b"xxxxxxxxWAVE", WAVE, b"ID3", ID3_TAG, ID3_TAG + b"\xff\xfb\x90\x64", b"fLaC", b"FORM"),
    *(b"\xff\xfb\x90\x64", b"\xff\xf1\x50\x80"),
)


@pytest.mark.parametrize(
    "text",
    [
        *(beginning + SESSION for beginning in SIGNATURES),
        b"#EXTM3U\nAVI \n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1/\n",
        b"#EXTftyp\n",
        b"<MPD    WAVE xmlns='urn:mpeg:dash:schema:mpd:2011'>",
        ID3_TAG + b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/\n",
        ID3_TAG + b"ffconcat version 1.0\nfile /etc/passwd\n",
        ID3_TAG + b"<MPD xmlns='urn:mpeg:dash:schema:mpd:2011'>",
        *(IMAGE, b"", b"ffconcat version 1.0"),
    ],
)
@pytest.mark.parametrize("kind", ["video", "audio"])
async def test_text_after_the_signature_of_a_medium_is_refused(text: bytes, kind: str) -> None:
    request = chat_body(to_data_url(text, f"{kind}/mp4"), kind=kind)
    assert UNREADABLE in await refusal_message(media_loader(), request)
