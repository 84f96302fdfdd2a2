"""Bodies that can't be read or serialized again, and limits on the size of bodies."""

import asyncio
import io
from typing import Any

import pytest
from support.processes.emulator_peer import Peer, with_options

MEGABYTE = 1_000_000
JOB, RESULT = '{"input": "%s"}', '{"output": "%s"}'
WRAPPER = len('{"output": }')  # the limit of a yield is on its value, quotes included

requests = pytest.mark.parametrize(
    ("path", "limit"),
    [("/run", 10_000_000), ("/runsync", 20_000_000), ("/openai/v1/completions", 20_000_000)],
)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}", id="deep"),
        pytest.param(b'{"input": NaN}', id="NaN"),
        pytest.param(b'{"input": "\\ud83d"}', id="half a surrogate pair"),
    ],
)
async def test_a_body_that_is_not_json_is_refused_on_every_route(peer: Peer, body: bytes) -> None:
    job = await peer.start()
    callers, workers = ("/run", "/runsync", "/openai/v1/completions"), ("stream", "done")
    for path in (*callers, "/control/faults", *(f"/job-{call}/w/{job}" for call in workers)):
        status, answer = await peer.request("POST", path, data=body)
        assert (status, "the body " in answer["error"]) == (400, True)


async def test_a_body_without_its_declared_encoding_is_refused(peer: Peer) -> None:
    answer = await peer.request_raw("POST", "/run", {"input": 1}, b"Content-Encoding: gzip\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"the body can't be read" in answer


def pad_body(template: str, size: int) -> bytes:
    """Fill the template; return a body of ``size`` bytes."""
    return (template % ("x" * (size - len(template) + 2))).encode()


async def send(peer: Peer, path: str, body: bytes) -> tuple[int, Any]:
    return await peer.request("POST", path, data=io.BytesIO(body))


@requests
@with_options(long_poll_s=600, oversize_status=413)
async def test_a_request_of_the_largest_size_is_served_and_a_larger_one_refused(
    peer: Peer, path: str, limit: int
) -> None:
    sending = asyncio.create_task(send(peer, path, pad_body(JOB, limit)))
    job = await peer.get("/job-take/w")
    assert limit - 20 < len(str(job["input"])) < limit + 100
    await peer.post_done(job["id"], output=1)
    assert (await sending)[0] == 200
    status, answer = await send(peer, path, pad_body(JOB, limit + 1))
    assert status == 413
    assert f"{limit + 1:,} bytes, and {limit:,} is the most" in answer["error"]
    assert len(peer.queue.jobs) == 1


@with_options(oversize_status=413)
async def test_a_chunk_that_is_too_large_is_refused(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    job = await peer.start()
    path = f"/job-stream/w/{job}"
    largest, larger = (pad_body(RESULT, WRAPPER + MEGABYTE + extra) for extra in (0, 1))
    assert await send(peer, path, largest) == (200, {})
    status, answer = await send(peer, path, larger)
    assert (status, "is the most" in answer["error"]) == (400, True)
    assert f"a worker's /v2/local{path} was refused" in caplog.text
    assert [len(output) for output in await peer.stream(job)] == [MEGABYTE - len('""')]


@with_options(oversize_status=413)
@pytest.mark.parametrize(
    ("size", "status"), [(20_000_000, 200), (20_000_001, 400), (64_000_001, 400)]
)
async def test_a_result_that_is_too_large_is_refused_and_its_job_completes_without_output(
    peer: Peer, caplog: pytest.LogCaptureFixture, size: int, status: int
) -> None:
    job = await peer.start()
    assert (await send(peer, f"/job-done/w/{job}", pad_body(RESULT, size)))[0] == status
    report = await peer.status_object(job)
    assert (report["status"], "output" in report) == ("COMPLETED", status == 200)
    refusal = f"a worker's /v2/local/job-done/w/{job} was refused"
    assert (refusal in caplog.text) == (status == 400)
