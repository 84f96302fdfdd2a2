"""Access: callers need the endpoint's key, workers need none, and web pages are refused."""

import json

import pytest
from aiohttp import ClientSession
from support.clients.console import check_headers, read_values
from support.processes.emulator_peer import Peer, emulator_peer, with_options
from support.tables import web_pages
from yarl import URL

from emulator import Emulator, Options, Status

KEY = "secret"
with_key = with_options(api_key=KEY)
Routes = list[tuple[str, str, int]]


def parse_routes(text: str) -> Routes:
    """Parse methods and paths, each with its status for an authorized request."""
    return [(method, path, int(status)) for method, path, status in map(str.split, text.split(","))]


FOR_CALLERS = parse_routes(
    "POST /run 400, POST /runsync 400, GET /stream/nope 404, GET /status/nope 404,"
    "POST /cancel/nope 404, POST /retry/nope 404, POST /purge-queue 200, GET /health 200,"
    "POST /openai/v1/completions 400, GET /control/faults 200, POST /control/faults 400,"
    "DELETE /control/faults 200, GET /control/jobs 200, GET /control/jobs/nope 404,"
    "GET /control/workers 200, POST /control/workers/nope/signal 404"
)
FOR_WORKERS = parse_routes(
    "GET /job-take/w 204, GET /job-take-batch/w?batch_size=2 204, GET /job-stop/w 204,"
    "POST /job-stream/w/nope 404, POST /job-done/w/nope 404, GET /ping/w 200"
)


async def call_routes(peer: Peer, routes: Routes, header: str | None) -> Routes:
    """Call the routes; return each with the status of its response."""
    headers = {} if header is None else {"Authorization": header}
    return [
        (method, path, (await peer.request(method, path, headers=headers))[0])
        for method, path, _ in routes
    ]


@with_key
@pytest.mark.parametrize("header", [None, "", "Bearer wrong", "Bearer secret2"])
async def test_a_caller_without_the_key_is_refused_and_a_worker_is_not(
    peer: Peer, header: str | None
) -> None:
    refused = [(method, path, 401) for method, path, _ in FOR_CALLERS]
    assert await call_routes(peer, FOR_CALLERS, header) == refused
    assert await call_routes(peer, FOR_WORKERS, header) == FOR_WORKERS


@with_key
async def test_a_key_that_is_not_utf8_is_refused(peer: Peer) -> None:
    answer = await peer.request_raw("GET", "/health", headers=b"Authorization: Bearer \xff\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    error = "GET /v2/local/health: the API key is missing or wrong"
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": error}


@pytest.mark.parametrize(
    ("key", "header"), [(KEY, "Bearer secret"), ("clé", "clé"), (None, None), (None, "Bearer any")]
)
async def test_callers_need_the_key_only_if_the_endpoint_has_one(
    key: str | None, header: str | None
) -> None:
    async with emulator_peer(api_key=key) as peer:
        assert await call_routes(peer, FOR_CALLERS, header) == FOR_CALLERS


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
async def test_only_the_emulators_own_page_may_cause_faults(
    peer: Peer, method: str, path: str
) -> None:
    url, path = peer.emulator.root_url, f"/control/{path}"
    for headers, is_answered in web_pages.REQUESTS:
        status = await web_pages.request_status(url, headers, path, method)
        # Without a body and a worker, a request that is not refused changes nothing.
        assert (headers, status == 403) == (headers, not is_answered)


@pytest.mark.parametrize("key", [None, KEY])
async def test_programs_are_answered_and_web_pages_are_refused(key: str | None) -> None:
    async with Emulator(Options(api_key=key)) as emulator:
        workers = str(URL(emulator.worker_url).origin())
        urls = (f"{emulator.url}/health", f"{workers}/v2/local/job-take/x", emulator.root_url)
        for headers, is_answered in web_pages.REQUESTS:
            job = emulator.queue.submit({"input": {}})
            for url in map(URL, urls):
                sent = headers | {"Authorization": f"Bearer {KEY}"}
                status = await web_pages.request_status(str(url.origin()), sent, url.path)
                assert (sent, url, status) == (sent, url, 200 if is_answered else 403)
            assert job.status is (Status.IN_PROGRESS if is_answered else Status.IN_QUEUE)


@pytest.mark.parametrize(("key", "value"), [(None, ""), (KEY, "needed")])
async def test_the_console_needs_no_key(
    session: ClientSession, key: str | None, value: str
) -> None:
    async with (
        Emulator(Options(api_key=key, endpoint="mine")) as emulator,
        session.get(f"{emulator.root_url}/") as response,
    ):
        page = await response.text()
        check_headers(response.headers, page)
    assert read_values(page) == {"server": "emulator", "endpoint": "/v2/mine", "key": value}


async def test_workers_and_callers_reach_an_emulator_that_listens_on_all_addresses(
    session: ClientSession,
) -> None:
    async with Emulator(Options(host="0.0.0.0")) as emulator:
        assert URL(emulator.root_url).host == "127.0.0.1"
        for url in (emulator.url, emulator.worker_url):
            async with session.get(f"{url}/health") as answer:
                assert answer.status == 200
