"""What a request's media become, and how long and how often they are fetched."""

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
from support.media import FILE, MESSAGES, as_url, body, data_url, image, media, refusal, values
from support.processes.background import eventually

from worker.media import Limits
from worker.media.loader import REQUESTS_AT_ONCE

REMOTE = "http://host.example/"


async def test_a_url_becomes_the_file_that_it_names_and_the_request_stays(media_host: Any) -> None:
    request = body(media_host(), data_url(), media_host(image(colour="blue")))
    before = str(request)
    blue = as_url(image(colour="blue"))
    assert await values(media(), request) == [as_url(FILE), data_url(), blue]
    assert str(request) == before


async def test_a_request_without_media_stays_the_same_object() -> None:
    # Keys that the worker itself sets pass.
    for request, keys in (
        ({"messages": [{"role": "user", "content": "Hi"}]}, MESSAGES),
        ({"input": "Hi", "request_id": "resp_1"}, ("input",)),
    ):
        after, shows = await media().inlined(request, keys)
        assert (after is request, shows) == (True, False)


async def test_the_type_is_read_from_the_file_not_from_the_host(media_host: Any) -> None:
    for format_ in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        file = image(format_=format_)
        (url,) = await values(media(), body(media_host(file, "application/octet-stream")))
        assert url == as_url(file, Image.MIME[format_])


async def test_a_redirect_is_followed_three_times_and_no_more(media_host: Any) -> None:
    url = media_host()
    for hop in range(3):
        # A whole URL, or a path.
        url = media_host.redirect(url if hop % 2 else f"/{url.rpartition('/')[2]}")
    assert await values(media(), body(url)) == [as_url(FILE)]
    url = media_host.redirect(url)
    assert await refusal(media(), body(url)) == "its host redirects more than 3 times"


async def test_only_the_domains_of_the_operator_are_asked(media_host: Any) -> None:
    url = media_host()
    own = media(domains=("other.example",))
    not_allowed = "its host is none of ALLOWED_MEDIA_DOMAINS"
    assert await refusal(own, body(url)) == not_allowed
    assert await values(own, body(url.replace("host.", "Other.")))
    assert await values(own, body(url.replace("host.example", "other.example.")))
    # A redirect leads to no others, either.
    redirect = media_host.redirect(url).replace("host.", "other.")
    assert await refusal(own, body(redirect)) == not_allowed


async def test_an_answer_that_is_no_medium_is_not_read(media_host: Any) -> None:
    for status in (201, 404, 503):
        url = media_host(status=status, headers={"X-Secret": "a"})
        assert await refusal(media(), body(url)) == f"its host answers {status}"
    message = "its host does not say that it is an image, a video or audio"
    assert await refusal(media(), body(media_host(type_="text/html"))) == message


async def test_a_compressed_answer_is_not_unpacked(media_host: Any) -> None:
    url = media_host(headers={"Content-Encoding": "gzip"})
    assert await values(media(), body(url)) == [as_url(FILE)]
    packed = media_host(base64.b64decode("H4sIAAAAAAAAA0tMBABVXQkKAgAAAA=="))
    assert "can't be read" in await refusal(media(), body(packed))


@pytest.mark.parametrize("length", [50_000_000, None])
async def test_a_too_large_file_is_not_read_to_its_end(media_host: Any, length: int | None) -> None:
    sent = 0

    async def large(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        response.content_length = length
        await response.prepare(request)
        for _ in range(500):
            await response.write(b"x" * 100_000)
            sent += 100_000
        return response

    message = await refusal(media(Limits(megabytes=1)), body(media_host.handled_by(large)))
    assert message.endswith("bytes, and at most 1,000,000 are taken (MEDIA_MAX_MB)")
    assert message.startswith("50,000,000 bytes") is bool(length)
    assert sent < 25_000_000


async def test_all_files_of_a_request_together_are_limited(media_host: Any) -> None:
    file = FILE + bytes(900_000)
    own = media(Limits(megabytes=1))
    assert len(await values(own, body(*[media_host(file)] * 4))) == 4
    message = await refusal(own, body(*[media_host(file)] * 5))
    assert "in the media of the request so far, and at most 4,000,000 are taken" in message


async def test_what_is_not_taken_is_refused_before_any_fetch() -> None:
    assert len(await values(media(Limits(parts=2)), body(*[data_url()] * 2))) == 2
    message = await refusal(media(Limits(parts=2)), body(*[REMOTE] * 3))
    assert message == "3 media in one request, and at most 2 are taken (MEDIA_MAX_PARTS)"
    own = media(Limits(remote=False))
    message = await refusal(own, body(data_url(), REMOTE))
    assert message == "this endpoint takes media as data: URLs only"
    assert await values(own, body(data_url())) == [data_url()]
    assert await refusal(media(kinds=()), body(REMOTE)) == "this model takes text"
    heard = media(kinds=("video", "audio"))
    assert await refusal(heard, body(REMOTE)) == "this model takes text and audio and video"


# Many at once, and slow ones:


async def test_many_requests_take_turns(media_host: Any) -> None:
    now, most = 0, 0

    async def slow(_: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return web.Response(body=FILE, content_type="image/png")

    own, url = media(), media_host.handled_by(slow)
    await asyncio.gather(*(own.inlined(body(*[url] * 8), MESSAGES) for _ in range(20)))
    # Four of one request, of eight requests at once.
    assert 8 < most <= 32


async def test_a_cancelled_request_lets_go_of_its_turn(media_host: Any) -> None:
    own, url = media(), media_host.silent()
    waiting = [asyncio.create_task(own.inlined(body(url), MESSAGES)) for _ in range(20)]
    await eventually(lambda: media_host.unanswered == REQUESTS_AT_ONCE)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await values(own, body(media_host())) == [as_url(FILE)]


LATE = "the media could not be fetched and checked within 0.1 seconds (MEDIA_FETCH_TIMEOUT_S)"


async def test_a_host_that_sends_nothing_is_given_up(media_host: Any) -> None:
    request = body(media_host(), media_host.silent(), media_host.silent())
    assert await refusal(media(Limits(seconds=0.1)), request) == LATE


@contextmanager
def busy(threads: Executor, count: int) -> Iterator[None]:
    """Keep so many threads busy."""
    begun, release = threading.Barrier(count + 1), threading.Event()

    def work() -> None:
        begun.wait()
        release.wait()

    for _ in range(count):
        threads.submit(work)
    begun.wait()
    try:
        yield
    finally:
        release.set()


async def test_files_that_are_looked_at_for_too_long_are_given_up() -> None:
    own = media(Limits(seconds=0.1))
    with busy(own._threads, REQUESTS_AT_ONCE):
        assert await refusal(own, body(data_url())) == LATE


async def test_media_and_the_loops_own_threads_do_not_wait_for_each_other(media_host: Any) -> None:
    loops_own = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(loops_own)
    own = media()
    with busy(loops_own, 1):
        assert await values(own, body(data_url(), media_host())) == [data_url(), as_url(FILE)]
    with busy(own._threads, REQUESTS_AT_ONCE):
        assert await asyncio.to_thread(lambda: "ran") == "ran"


class Counting(ThreadPoolExecutor):
    """Knows how many calls have been with it at once."""

    now = most = 0

    def submit(self, *call: Any, **keys: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        future = super().submit(*call, **keys)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Any) -> None:
        self.now -= 1


async def test_a_request_has_one_thread_at_a_time_whatever_its_media(media_host: Any) -> None:
    own = media()
    own._threads = threads = Counting(REQUESTS_AT_ONCE)
    assert len(await values(own, body(*[data_url()] * 8, *[media_host()] * 8))) == 16
    assert threads.most == 1
