"""Rows that are fetched from an address, of which hosts on loopback stand for the internet."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.creations import CSV, MODEL, content, create, refused
from support.engine.scripted import settings
from support.internet import Names

from worker.errors import InputTooLarge
from worker.fine_tunes.creation import Creator
from worker.fine_tunes.sources import ROWS, Sources
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX, FineTunes
from worker.job.fine_tune import FineTuneSpec
from worker.media.fetcher import Fetcher
from worker.volume import ids


@pytest.fixture
async def host() -> AsyncGenerator[Any, None]:
    """A host of the internet, which lies at 127.0.0.9 here."""
    answers: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        body, type_ = answers[request.path]
        return web.Response(body=body, content_type=type_) if type_ else await body(request)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    async with TestServer(app, host="127.0.0.9") as server:

        def serve(name: str, body: Any, type_: str = "") -> str:
            answers[f"/{name}"] = body, type_
            return f"http://host.example:{server.port}/{name}?secret=word"

        yield serve


def fetching(fine_tunes: FineTunes) -> Creator:
    fetcher = Fetcher(
        resolver=lambda: Names({"host.example": [["127.0.0.9"]]}),
        allows=lambda address: address == "127.0.0.9",
        types=ROWS,
    )
    return Creator(fine_tunes, MODEL, Sources(fine_tunes.files, fetcher))


@pytest.mark.parametrize("type_", ["text/csv", "text/plain", "application/octet-stream"])
async def test_a_file_may_be_fetched_from_an_address_once(
    fine_tunes: FineTunes, host: Any, type_: str
) -> None:
    url = host("rows.csv", CSV, type_)
    made = await asyncio.to_thread(create, fetching(fine_tunes), training_file=url)
    file = fine_tunes.files.get(made.request.training.file_id)
    assert content(fine_tunes, file.id) == CSV
    assert (file.filename, file.purpose) == ("rows.csv", "fine-tune")
    again = await asyncio.to_thread(
        create, fetching(fine_tunes), training_file="http://host.example/gone"
    )
    assert again.request == made.request
    assert b"secret" not in b"".join(
        path.read_bytes() for path in fine_tunes.volume.root.rglob("*") if path.is_file()
    )


async def test_slow_hosts_hold_two_threads_that_nobody_else_waits_for(
    fine_tunes: FineTunes, host: Any
) -> None:
    arrived, release = asyncio.Queue[str](), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await arrived.put(request.path)
        await release.wait()
        return web.Response(body=CSV, content_type="text/csv")

    def begin(number: int, **asked: Any) -> asyncio.Task[FineTune]:
        id, spec = ids.derived(PREFIX, str(number)), FineTuneSpec.of_body(asked)
        return asyncio.create_task(fetching(fine_tunes).acreate(spec, id))

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    tasks = [begin(number, training_file=host("slow.csv", slow)) for number in range(3)]
    await arrived.get()
    await arrived.get()
    await begin(3, rows=[{"prompt": "a", "response": "b"}])
    assert (arrived.empty(), [task.done() for task in tasks]) == (True, [False] * 3)
    release.set()
    await asyncio.gather(*tasks)


async def test_what_an_address_has_must_be_rows_and_not_too_large(
    fine_tunes: FineTunes, host: Any
) -> None:
    page = host("page", b"<html>", "text/html")
    error = await asyncio.to_thread(refused, fetching(fine_tunes), training_file=page)
    assert "does not say that it is CSV or JSONL" in error.message
    large = host("large.csv", b"a" * 1_000_001, "text/csv")
    error = await asyncio.to_thread(refused, fetching(fine_tunes), training_file=large)
    assert isinstance(error, InputTooLarge)
    assert error.param == "training_file"
    assert not fine_tunes.files.list().data


async def test_an_address_inside_is_never_asked(fine_tunes: FineTunes) -> None:
    asked = {"training_file": "http://169.254.169.254/latest/meta-data"}
    error = await asyncio.to_thread(refused, Creator.of(fine_tunes, MODEL, settings()), **asked)
    assert "no address on the public internet" in error.message


async def test_other_hosts_than_the_allowed_ones_are_never_asked(fine_tunes: FineTunes) -> None:
    made_by = Creator.of(fine_tunes, replace(MODEL, hosts=("other.example",)), settings())
    error = await asyncio.to_thread(refused, made_by, training_file="https://example.com/rows.csv")
    assert "ALLOWED_MEDIA_DOMAINS" in error.message
