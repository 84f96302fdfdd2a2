"""Who is answered: callers with the endpoint's key, workers and programs, and no web pages."""

import json

import aiohttp
import pytest
from support.processes.emulator_peer import Peer, emulator_peer, with_options
from support.tables import web_pages
from yarl import URL

from emulator import Emulator, Options, Status

KEY = "secret"
with_key = with_options(api_key=KEY)
Routes = list[tuple[str, str, int]]


def routes(text: str) -> Routes:
    """Return methods and paths, and their statuses for an authorized request."""
    return [(method, path, int(status)) for method, path, status in map(str.split, text.split(","))]


FOR_CALLERS = routes(
    "POST /run 400, POST /runsync 400, GET /stream/nope 404, GET /status/nope 404,"
    "POST /cancel/nope 404, POST /retry/nope 404, POST /purge-queue 200, GET /health 200,"
    "POST /openai/v1/completions 400, GET /control/faults 200, POST /control/faults 400,"
    "DELETE /control/faults 200, GET /control/jobs 200, GET /control/jobs/nope 404,"
    "GET /control/workers 200, POST /control/workers/nope/signal 404"
)
FOR_WORKERS = routes(
    "GET /job-take/w 204, GET /job-take-batch/w?batch_size=2 204, GET /job-stop/w 204,"
    "POST /job-stream/w/nope 404, POST /job-done/w/nope 404, GET /ping/w 200"
)


async def answered(peer: Peer, routes: Routes, header: str | None) -> Routes:
    """Call the routes; return each with the status that it answered."""
    headers = {} if header is None else {"Authorization": header}
    return [
        (method, path, (await peer.request(method, path, headers=headers))[0])
        for method, path, _ in routes
    ]


@with_key
@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer ", "wrong", "Bearer wrong", "Bearer secret2", "Basic c2VjcmV0Og=="],
)
async def test_a_caller_without_the_key_is_refused(peer: Peer, header: str | None) -> None:
    refused = [(method, path, 401) for method, path, _ in FOR_CALLERS]
    assert await answered(peer, FOR_CALLERS, header) == refused


@with_key
async def test_a_key_that_is_no_text_is_wrong_too(peer: Peer) -> None:
    answer = await peer.raw("GET", "/health", headers=b"Authorization: Bearer \xff\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    error = "GET /v2/local/health: the API key is missing or wrong"
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": error}


@pytest.mark.parametrize("key", [KEY, "clé"])
@pytest.mark.parametrize("word", ["Bearer ", ""])
async def test_the_key_is_taken_with_the_word_bearer_and_without(word: str, key: str) -> None:
    async with emulator_peer(api_key=key) as peer:
        assert await answered(peer, FOR_CALLERS, word + key) == FOR_CALLERS


@with_key
@pytest.mark.parametrize("header", [None, "Bearer local"])
async def test_a_worker_needs_no_key(peer: Peer, header: str | None) -> None:
    assert await answered(peer, FOR_WORKERS, header) == FOR_WORKERS


@pytest.mark.parametrize("header", [None, "Bearer any"])
async def test_where_no_key_is_set_any_is_accepted(peer: Peer, header: str | None) -> None:
    assert await answered(peer, FOR_CALLERS, header) == FOR_CALLERS


# Web pages:


async def status_of(url: str, **headers: str) -> int:
    body = b'{"input": {"prompt": "Hi"}}'
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers) as answer,
    ):
        return answer.status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.com"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example.com", "Origin": "http://rebound.example.com"},
    ],
)
async def test_what_a_foreign_page_sends_is_refused(peer: Peer, headers: dict[str, str]) -> None:
    job = await peer.start()
    for path in ("/run", "/openai/v1/chat/completions", "/purge-queue", f"/cancel/{job}"):
        assert await status_of(peer.emulator.url + path, **headers) == 403
    for path in (f"/job-done/w/{job}", f"/job-stream/w/{job}"):
        assert await status_of(peer.emulator.worker_url + path, **headers) == 403
    assert await peer.status(job) == "IN_PROGRESS"
    assert [*peer.queue.jobs] == [job]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "faults"),
        ("DELETE", "faults"),
        ("POST", "workers/worker-1/signal"),
        ("POST", "workers/worker-1/freeze"),
        ("POST", "outage"),
    ],
)
async def test_not_even_the_emulators_own_page_breaks_things(
    peer: Peer, method: str, path: str
) -> None:
    headers = {"Origin": peer.emulator.root_url}
    body = json.dumps({"on": "take", "do": "reset"})
    answer = await peer.request(method, f"/control/{path}", data=body, headers=headers)
    assert answer[0] == 403
    assert peer.emulator.faults.active() == []


@pytest.mark.parametrize(("headers", "is_answered"), web_pages.ANSWERED)
async def test_programs_are_answered_not_pages(headers: dict[str, str], is_answered: bool) -> None:
    async with Emulator() as emulator:
        job = emulator.queue.submit({"input": {}})
        workers = str(URL(emulator.worker_url).origin())
        for url, path in ((emulator.root_url, "health"), (workers, "job-take/x")):
            status = await web_pages.status(url, headers, f"/v2/local/{path}")
            assert status == (200 if is_answered else 403)
        assert job.status is (Status.IN_PROGRESS if is_answered else Status.IN_QUEUE)


async def test_workers_and_callers_reach_one_that_listens_on_all_addresses() -> None:
    async with Emulator(Options(host="0.0.0.0")) as emulator:
        urls = emulator.url, emulator.worker_url, emulator.root_url
        assert {URL(url).host for url in urls} == {"127.0.0.1"}
        assert await status_of(f"{emulator.url}/run") == 200
        assert await status_of(f"{emulator.worker_url}/purge-queue") == 200
