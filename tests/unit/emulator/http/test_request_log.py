"""The request log: one line of JSON per request."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes.emulator_client import emulator_client, eventually

from emulator import Emulator, Options


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_each_request_is_a_line_with_what_was_asked_and_answered(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    async with emulator_client(request_log=log) as client:
        begun = time.time()
        await client.request("POST", "/run", data=b'{"input": "\xc3\xbc"}')
        await client.request("GET", "/status/nope?ttl=5")
        await client.request("POST", "/run", data=b"{")
        await client.request("GET", "/control/jobs")
        # A line is written with its answer, not only at the end.
        answered = lines(log)
    assert lines(log) == answered
    keys = ("method", "path", "status", "bytes_in")
    assert [tuple(line[key] for key in keys) for line in answered] == [
        ("POST", "/v2/local/run", 200, 15),
        ("GET", "/v2/local/status/nope?ttl=5", 404, 0),
        ("POST", "/v2/local/run", 400, 1),
        ("GET", "/control/jobs", 200, 0),
    ]
    assert all(line["bytes_out"] > 0 and line["ms"] >= 0 for line in answered)
    assert all(begun - 60 < line["at"] < time.time() + 60 for line in answered)
    assert "fault" not in json.dumps(answered)


async def test_the_time_of_a_request_is_that_until_its_answer(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    async with emulator_client(request_log=log, take_poll_s=0.1) as client:
        arrived = time.time()
        await client.get("/job-take/w")
        (line,) = lines(log)
    assert 99 <= line["ms"] < 10_000
    assert abs(line["at"] - arrived) < 5


@pytest.mark.parametrize(
    ("method", "path", "fault"),
    [
        ("GET", "/job-take/w", {"do": "status", "status": 429}),
        ("GET", "/job-take/w", {"do": "reset"}),
        ("GET", "/job-take/w", {"do": "lose"}),
        ("GET", "/job-take/w", {"do": "delay", "delay_s": 0.01}),
        ("GET", "/job-take/w", {"do": "duplicate"}),
        ("POST", "/job-stream/w/{job}", {"do": "status", "status": 429}),
        ("POST", "/job-stream/w/{job}", {"do": "reset"}),
        ("POST", "/job-stream/w/{job}", {"do": "lose"}),
        ("POST", "/job-stream/w/{job}", {"do": "delay", "delay_s": 0.01}),
    ],
)
async def test_the_fault_that_a_request_met_is_noted(
    tmp_path: Path, method: str, path: str, fault: dict[str, Any]
) -> None:
    log = tmp_path / "requests.jsonl"
    async with emulator_client(request_log=log) as client:
        job = await (client.run if method == "GET" else client.start)()
        on = "take" if method == "GET" else "stream"
        await client.post("/control/faults", {"on": on, **fault})
        call = client.raw(method, path.format(job=job), {"output": "a"})
        if fault["do"] in ("reset", "lose"):
            with pytest.raises(ConnectionResetError):
                await call
        else:
            assert await call

        async def is_logged() -> bool:
            return "/job-" in lines(log)[-1]["path"]

        await eventually(is_logged)
        line = lines(log)[-1]
    assert line.get("fault") == fault["do"]
    assert line["status"] == 429 or "status" not in fault


async def test_an_emulator_writes_its_log_anew(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    for _ in range(2):
        async with emulator_client(request_log=log) as client:
            await client.get("/health")
    assert len(lines(log)) == 1


async def test_a_log_that_cannot_be_written_keeps_the_emulator_from_starting(
    tmp_path: Path,
) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        await Emulator(Options(request_log=tmp_path)).start()


async def test_a_request_whose_caller_hung_up_is_a_line_too(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    async with emulator_client(request_log=log, take_poll_s=600) as client:
        asking = asyncio.create_task(client.get("/job-take/w"))
        workers = client.emulator.queue.workers
        await client.emulator.queue.arrived.wait_for(lambda: "w" in workers, 60)
        asking.cancel()

        async def is_logged() -> bool:
            return '"status": 499' in log.read_text()

        await eventually(is_logged)


async def test_the_log_of_an_endpoint_whose_port_another_wants_too_stays(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    async with emulator_client(request_log=log) as client:
        await client.get("/health")
        port = int(client.emulator.root_url.rpartition(":")[2])
        with pytest.raises(OSError, match="address already in use"):
            await Emulator(Options(port=port, request_log=log)).__aenter__()
        assert len(log.read_text().splitlines()) == 1
