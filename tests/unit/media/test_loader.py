"""Media of requests: how they are fetched and replaced, their limits, and their concurrency."""

import asyncio
import base64
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from PIL import Image
from support.media import (
    IMAGE,
    MESSAGES,
    chat_body,
    data_url,
    image,
    inlined_urls,
    media_loader,
    refusal_message,
    to_data_url,
)
from support.processes.background import poll_until

from worker.media.contents import MediaLimits
from worker.media.loader import MAX_CONCURRENT_REQUESTS

REMOTE = "http://host.example/"


async def test_a_url_is_replaced_by_its_file_in_a_copy_of_the_request(media_host: Any) -> None:
    request = chat_body(media_host(), data_url(), media_host(image(colour="blue")))
    before = str(request)
    blue = to_data_url(image(colour="blue"))
    assert await inlined_urls(media_loader(), request) == [to_data_url(IMAGE), data_url(), blue]
    assert str(request) == before


async def test_a_request_without_media_stays_the_same_object() -> None:
    # Keys that the worker sets itself are accepted.
    for request, keys in (
        ({"messages": [{"role": "user", "content": "Hi"}]}, MESSAGES),
        ({"input": "Hi", "request_id": "resp_1"}, ("input",)),
    ):
        after, has_media = await media_loader().inline_media(request, keys)
        assert (after is request, has_media) == (True, False)


async def test_the_media_type_is_read_from_the_file(media_host: Any) -> None:
    for format_ in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        file = image(format_=format_)
        (url,) = await inlined_urls(
            media_loader(), chat_body(media_host(file, "application/octet-stream"))
        )
        assert url == to_data_url(file, Image.MIME[format_])


async def test_at_most_three_redirects_are_followed(media_host: Any) -> None:
    url = media_host()
    for hop in range(3):
        # Alternately a whole URL and a path.
        url = media_host.redirect(url if hop % 2 else f"/{url.rpartition('/')[2]}")
    assert await inlined_urls(media_loader(), chat_body(url)) == [to_data_url(IMAGE)]
    url = media_host.redirect(url)
    assert (
        await refusal_message(media_loader(), chat_body(url))
        == "its host redirects more than 3 times"
    )


async def test_media_are_fetched_only_from_domains_that_the_operator_allows(
    media_host: Any,
) -> None:
    url = media_host()
    loader = media_loader(domains=("other.example",))
    not_allowed = "its host is not one of ALLOWED_MEDIA_DOMAINS"
    assert await refusal_message(loader, chat_body(url)) == not_allowed
    assert await inlined_urls(loader, chat_body(url.replace("host.", "Other.")))
    assert await inlined_urls(loader, chat_body(url.replace("host.example", "other.example.")))
    # A redirect can't lead to another domain.
    redirect = media_host.redirect(url).replace("host.", "other.")
    assert await refusal_message(loader, chat_body(redirect)) == not_allowed


async def test_a_response_that_is_no_medium_is_not_read(media_host: Any) -> None:
    for status in (201, 404, 503):
        url = media_host(status=status, headers={"X-Secret": "a"})
        assert await refusal_message(media_loader(), chat_body(url)) == f"its host answers {status}"
    message = "its host does not say that it is an image, a video or audio"
    assert (
        await refusal_message(media_loader(), chat_body(media_host(media_type="text/html")))
        == message
    )


async def test_a_compressed_response_is_not_unpacked(media_host: Any) -> None:
    url = media_host(headers={"Content-Encoding": "gzip"})
    assert await inlined_urls(media_loader(), chat_body(url)) == [to_data_url(IMAGE)]
    packed = media_host(base64.b64decode("H4sIAAAAAAAAA0tMBABVXQkKAgAAAA=="))
    assert "can't be read" in await refusal_message(media_loader(), chat_body(packed))


@pytest.mark.parametrize("length", [50_000_000, None])
async def test_a_too_large_file_is_not_read_to_its_end(media_host: Any, length: int | None) -> None:
    sent = 0

    async def send_large_file(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        response.content_length = length
        await response.prepare(request)
        for _ in range(500):
            await response.write(b"x" * 100_000)
            sent += 100_000
        return response

    message = await refusal_message(
        media_loader(MediaLimits(megabytes=1)), chat_body(media_host.serve(send_large_file))
    )
    assert message.endswith("bytes, and at most 1,000,000 are accepted (MEDIA_MAX_MB)")
    assert message.startswith("50,000,000 bytes") is bool(length)
    assert sent < 25_000_000


async def test_all_files_of_a_request_together_are_limited(media_host: Any) -> None:
    file = IMAGE + bytes(900_000)
    loader = media_loader(MediaLimits(megabytes=1))
    assert len(await inlined_urls(loader, chat_body(*[media_host(file)] * 4))) == 4
    message = await refusal_message(loader, chat_body(*[media_host(file)] * 5))
    assert "in the media of the request so far, and at most 4,000,000 are accepted" in message


async def test_media_that_the_endpoint_does_not_accept_are_refused_before_any_fetch() -> None:
    assert (
        len(await inlined_urls(media_loader(MediaLimits(parts=2)), chat_body(*[data_url()] * 2)))
        == 2
    )
    message = await refusal_message(media_loader(MediaLimits(parts=2)), chat_body(*[REMOTE] * 3))
    assert message == "3 media in one request, and at most 2 are accepted (MEDIA_MAX_PARTS)"
    loader = media_loader(MediaLimits(allow_remote=False))
    message = await refusal_message(loader, chat_body(data_url(), REMOTE))
    assert message == "this endpoint accepts media as data: URLs only"
    assert await inlined_urls(loader, chat_body(data_url())) == [data_url()]
    assert (
        await refusal_message(media_loader(kinds=()), chat_body(REMOTE))
        == "this model accepts text"
    )
    video_and_audio = media_loader(kinds=("video", "audio"))
    assert (
        await refusal_message(video_and_audio, chat_body(REMOTE))
        == "this model accepts text and audio and video"
    )


# Concurrent and slow requests:


async def test_the_number_of_concurrent_fetches_is_limited(media_host: Any) -> None:
    running, highest = 0, 0

    async def respond_slowly(_: web.Request) -> web.Response:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0.02)
        running -= 1
        return web.Response(body=IMAGE, content_type="image/png")

    loader, url = media_loader(), media_host.serve(respond_slowly)
    await asyncio.gather(*(loader.inline_media(chat_body(*[url] * 8), MESSAGES) for _ in range(20)))
    # At most four fetches for each of eight concurrent requests.
    assert 8 < highest <= 32


async def test_a_cancelled_request_frees_its_slot(media_host: Any) -> None:
    loader, url = media_loader(), media_host.serve_nothing()
    waiting = [
        asyncio.create_task(loader.inline_media(chat_body(url), MESSAGES)) for _ in range(20)
    ]
    await poll_until(lambda: media_host.pending_requests == MAX_CONCURRENT_REQUESTS)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await inlined_urls(loader, chat_body(media_host())) == [to_data_url(IMAGE)]


TIMEOUT_MESSAGE = (
    "the media could not be fetched and checked within 0.1 seconds (MEDIA_FETCH_TIMEOUT_S)"
)


async def test_a_fetch_from_a_host_that_sends_nothing_times_out(media_host: Any) -> None:
    request = chat_body(media_host(), media_host.serve_nothing(), media_host.serve_nothing())
    assert (
        await refusal_message(media_loader(MediaLimits(timeout_s=0.1)), request) == TIMEOUT_MESSAGE
    )


@contextmanager
def keep_busy(threads: Executor, count: int) -> Iterator[None]:
    """Keep ``count`` threads busy."""
    barrier, release = threading.Barrier(count + 1), threading.Event()

    def work() -> None:
        barrier.wait()
        release.wait()

    for _ in range(count):
        threads.submit(work)
    barrier.wait()
    try:
        yield
    finally:
        release.set()


async def test_checking_files_for_too_long_times_out() -> None:
    loader = media_loader(MediaLimits(timeout_s=0.1))
    with keep_busy(loader._threads, MAX_CONCURRENT_REQUESTS):
        assert await refusal_message(loader, chat_body(data_url())) == TIMEOUT_MESSAGE


async def test_media_and_the_loops_own_threads_do_not_wait_for_each_other(media_host: Any) -> None:
    loop_threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(loop_threads)
    loader = media_loader()
    with keep_busy(loop_threads, 1):
        assert await inlined_urls(loader, chat_body(data_url(), media_host())) == [
            data_url(),
            to_data_url(IMAGE),
        ]
    with keep_busy(loader._threads, MAX_CONCURRENT_REQUESTS):
        assert await asyncio.to_thread(lambda: "ran") == "ran"


class CountingExecutor(ThreadPoolExecutor):
    """An executor that records the highest number of concurrent calls."""

    running = highest = 0

    def submit(self, *arguments: Any, **options: Any) -> Any:
        self.running += 1
        self.highest = max(self.highest, self.running)
        future = super().submit(*arguments, **options)
        future.add_done_callback(self._decrement)
        return future

    def _decrement(self, _: Any) -> None:
        self.running -= 1


async def test_a_request_uses_one_thread_at_a_time(media_host: Any) -> None:
    loader = media_loader()
    loader._threads = threads = CountingExecutor(MAX_CONCURRENT_REQUESTS)
    assert len(await inlined_urls(loader, chat_body(*[data_url()] * 8, *[media_host()] * 8))) == 16
    assert threads.highest == 1
